#!/bin/bash
#SBATCH --job-name=infrarsi-night-r0001-1
#SBATCH --comment=infrarsi
#SBATCH --output=/home/u/project/.infrarsi/night/rounds/r0001/job-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --time=01:30:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --partition=batch
#SBATCH --account=lab
#SBATCH --cpus-per-task=1
#SBATCH --requeue
#SBATCH --signal=B:USR1@180
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=me@example.org
# The head of a campaign as a small job: before its time limit it hands over, and the same script is submitted again.
set -o pipefail
export FI_PROVIDER="cxi"
export NCCL_NET="AWS Libfabric"
cd '/home/u/my project'"'"'s code'
/opt/venv/bin/python -P -m infrarsi_hpc.cli.app run --fix compile=off --until 2030-01-01T07:00:00 &
head=$!
goes_on=yes
trap 'kill -USR1 "$head" 2>/dev/null' USR1
trap 'goes_on=no; kill -TERM "$head" 2>/dev/null' TERM
while :; do
  wait "$head" && code=0 || code=$?
  kill -0 "$head" 2>/dev/null || break
done
# 5: interrupted and resumable; a person's own stop leaves a file behind
if [ "$code" -eq 5 ] && [ "$goes_on" = yes ] && [ ! -e /home/u/project/.infrarsi/night/stop ]; then
  own=$SLURM_JOB_ID
  # this job's own variables are not the next one's
  for name in $(compgen -e | grep -E '^(SLURM|SBATCH|SRUN)_' | grep -vx SLURM_CONF); do unset "$name"; done
  # where nodes may not submit, the same job is put back into the queue
  /opt/slurm/bin/sbatch -M willow /home/u/project/.infrarsi/night/head.sh || scontrol requeue "$own"
fi
exit "$code"
