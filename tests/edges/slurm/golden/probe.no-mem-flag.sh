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
#SBATCH --gpus-per-node=1
#SBATCH --no-requeue
# Looks round on a node and changes nothing: `infrarsi site check` reads the answers, one `name=value` a line.
set -u
result=/home/u/probe.txt
say() { printf '%s=%s\n' "$1" "$(printf '%s' "$2" | tr -c '[:print:]' ' ' | head -c 4000)" >> "$result.new"; }
: > "$result.new"
say variables "$(compgen -e | tr '\n' ' ')"
say host "$(hostname)"
say node "${SLURMD_NODENAME:-}"
say job "${SLURM_JOB_ID:-} ${SLURM_JOB_PARTITION:-} ${SLURM_JOB_ACCOUNT:-} ${SLURM_JOB_QOS:-}"
say cpus "${SLURM_CPUS_ON_NODE:-}"
say visible_devices "${CUDA_VISIBLE_DEVICES-none}"
if command -v nvidia-smi > /dev/null; then
  say gpus "$(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits 2>&1 | tr '\n' ';')"
fi
# once as strictly as trials do it, in a shell of its own, so that a line that fails can be named
if ! (
  set -Eeuo pipefail
  trap 'say setup_failed "$BASH_COMMAND"' ERR
export FI_PROVIDER="cxi"
export NCCL_NET="AWS Libfabric"
) > "$result.setup" 2>&1; then
  say setup "$(tail -n 5 "$result.setup")"
fi
set +u
export FI_PROVIDER="cxi"
export NCCL_NET="AWS Libfabric"
set +e -u
scratch="${TMPDIR}/infrarsi"
say scratch "$scratch"
if mkdir -p "$scratch" 2> "$result.scratch" && probe=$(mktemp "$scratch/.infrarsi-probe.XXXXXX" 2> "$result.scratch") && echo 1 > "$probe"; then
  say scratch_free_mib "$(df -Pm "$scratch" | awk 'NR == 2 { print $4 }')"
  rm -f "$probe"
else
  say scratch_refused "$(cat "$result.scratch")"
fi
say python "$("/opt/venv/bin/python" -c 'import sys; print(".".join(map(str, sys.version_info[:3])))' 2>&1 | tail -n 3)"
rm -f "$result.setup" "$result.scratch"
say written "$(date +%s.%N)"
mv "$result.new" "$result"
