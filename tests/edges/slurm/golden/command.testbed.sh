#!/bin/bash
#SBATCH --job-name=infrarsi-night-r0001-1
#SBATCH --comment=infrarsi
#SBATCH --output=/home/u/project/.infrarsi/night/rounds/r0001/job-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --time=01:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --partition=h100
#SBATCH --account=lab
#SBATCH --exclusive
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:h100:1
#SBATCH --mem=1024M
#SBATCH --no-requeue
# One command of infrarsi's on a node of the kind that trials get.
# not -u: activate scripts and module commands read variables that may be unset
set -eo pipefail
cd '/home/u/my project'"'"'s code'
exec /opt/venv/bin/python -P -m infrarsi_hpc.cli.app run --fix compile=off --until 2030-01-01T07:00:00
