#!/bin/bash
# A batch script for SLURM that runs `ag-jax VERB FLAGS`. Submit it in the checkout, with sbatch's own options:
#
#   sbatch --gpus-per-node=4 --time=2-00 launch/slurm.sh train --config=CONFIG --workdir=/shared/runs/first
#   sbatch --nodes=2 --gpus-per-node=4 --ntasks-per-node=4 launch/slurm.sh train --config=CONFIG --workdir=/shared/2
#   sbatch --array=1-6 --gpus-per-node=1 launch/slurm.sh compare --config=CONFIG --workdir=/shared/runs/seeds
#
# The job is requeued, and resumes, after its time limit, a preemption or the loss of a node. docs/slurm.md explains it.
# Environment variables, all optional:
#
#   AG_JAX_VENV=FOLDER     folder of the environment (default .venv)
#   AG_JAX_REQUEUES=20     a job that has been started again so often is not requeued any more
#
# Options of sbatch take precedence over these lines. SIGTERM goes to ag-jax alone, 120 seconds before the time limit.
#SBATCH --job-name=ag-jax
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
: "${SLURM_JOB_ID:?submit this script with sbatch}"

# sbatch copies this script to a folder of its own, so the checkout is the directory in which the job was submitted.
ag_jax=${AG_JAX_VENV:-$PWD/.venv}/bin/ag-jax
if [ ! -x "$ag_jax" ]; then
  echo "ag_jax: there is no $ag_jax on $(hostname): create it with \`bash launch/local.sh help\` on the login node," \
    "and submit this script in that checkout, on a disk that all nodes share" >&2
  exit 1
fi

restarts=${SLURM_RESTART_COUNT:-0}
echo "ag_jax: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((restarts + 1)), $(date '+%Y-%m-%d %H:%M:%S')"
# If JAX finds no GPU in a job with GPUs, this makes it fail. With cuda,cpu it would train on the CPU.
if [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then export JAX_PLATFORMS=cuda; fi
# srun reads another variable than the one that sbatch sets.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
if [ "$SLURM_NTASKS" -gt 1 ]; then set -- "$@" --hosts=auto; fi

# The first step shows that every node can run ag-jax. In the second, the others have 300 seconds to end by themselves
# after one has ended: with --kill-on-bad-exit=1, srun would stop them at once and return their status, 75 or 143, in
# place of the error's.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 "$ag_jax" --version &&
  srun --kill-on-bad-exit=0 --wait=300 "$ag_jax" "$@"
status=$?

# 75 asks for another start; above 128, a signal has ended a process, of which 130 is somebody's Ctrl-C. Any other error
# would come again.
if [ $status -ne 75 ] && { [ $status -le 128 ] || [ $status -eq 130 ]; }; then exit $status; fi
if [ "$restarts" -ge "${AG_JAX_REQUEUES:=20}" ]; then
  echo "ag_jax: exit status $status, and AG_JAX_REQUEUES=$AG_JAX_REQUEUES is reached: submit the same command again" >&2
  exit $status
fi
# The number of one job of an array is also that of the whole array, which only the form ARRAY_TASK tells apart.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
exec scontrol requeue "${job:-$SLURM_JOB_ID}"
