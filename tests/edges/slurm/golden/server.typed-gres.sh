#!/bin/bash
#SBATCH --job-name=infrarsi-night-r0001-1
#SBATCH --comment=infrarsi
#SBATCH --output=/home/u/project/.infrarsi/night/rounds/r0001/job-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --time=01:30:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --partition=a100
#SBATCH --account=lab
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:a100:1
#SBATCH --mem-per-gpu=32768M
#SBATCH --requeue
# The model server, beside the trials: it says where it listens in a file, and ends with the campaign.
# not -u: activate scripts and module commands read variables that may be unset
set -eo pipefail
export NCCL_IB_HCA="mlx5"
cd /home/u/project/.infrarsi/night/rounds/r0001
port=$((20000 + SLURM_JOB_ID % 20000))
host=$(hostname)
trap 'rm -f /home/u/project/.infrarsi/night/server.json' EXIT
printf '{"schema_version": 1, "host": "%s", "port": %d, "job": "%s"}\n' "$host" "$port" "$SLURM_JOB_ID" > /home/u/project/.infrarsi/night/server.json.new
mv /home/u/project/.infrarsi/night/server.json.new /home/u/project/.infrarsi/night/server.json
# not on the command line, where every user of the node could read it
VLLM_API_KEY=$(cat /home/u/project/.infrarsi/night/server.key)
export VLLM_API_KEY
"/opt/venv/bin/python" -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --port "$port" --model /home/u/models/small run --fix compile=off --until 2030-01-01T07:00:00
