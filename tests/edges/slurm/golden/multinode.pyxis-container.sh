#!/bin/bash
#SBATCH --job-name=infrarsi-night-r0001-1
#SBATCH --comment=infrarsi
#SBATCH --output=/home/u/project/.infrarsi/night/rounds/r0001/job-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --time=01:30:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --exclusive
#SBATCH --cpus-per-task=96
#SBATCH --gpus-per-node=2
#SBATCH --mem=0
#SBATCH --requeue
# A program on several nodes: srun starts its tasks, and all meet at the first node.
# not -u: activate scripts and module commands read variables that may be unset
set -eo pipefail
export NCCL_DEBUG="WARN"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# a port of the job's own, so that two jobs on one node do not meet
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT
export INFRARSI_RANKS_PER_NODE=4
cd /home/u/project/.infrarsi/night/rounds/r0001
exec srun --mpi=none --container-image="nvcr.io#nvidia/pytorch:25.06-py3" --container-mounts="/home/u/project,/data:/data" --no-container-mount-home --ntasks-per-node=2 --kill-on-bad-exit=1 --label "python3" run --fix compile=off --until 2030-01-01T07:00:00
