#!/bin/bash
#SBATCH --job-name=infrarsi-night-r0001-1
#SBATCH --comment=infrarsi
#SBATCH --output=/home/u/project/.infrarsi/night/rounds/r0001/job-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --time=01:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --array=0-7%4
#SBATCH --partition=h100
#SBATCH --account=lab
#SBATCH --exclusive
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:h100:2
#SBATCH --mem=1024M
#SBATCH --exclude=n03,n07
#SBATCH --requeue
# A round of trials, one task of the array each: its agent makes the trials of its task and writes a result for each.
# not -u: activate scripts and module commands read variables that may be unset
set -eo pipefail
# nothing that lies in the current folder is imported
export PYTHONSAFEPATH=1 PYTHONPATH=/home/u/project/.infrarsi/night/starter
cd /home/u/project/.infrarsi/night/rounds/r0001
task=${SLURM_ARRAY_TASK_ID:-0}
# exec: the agent is the batch step itself, so that Slurm's signals reach it
exec "/opt/venv/bin/python" -m infrarsi_hpc.edges.agent.main /home/u/project/.infrarsi/night/rounds/r0001 1 "$task" "${TMPDIR}/infrarsi"
