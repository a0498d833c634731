#!/usr/bin/env bash
# Set ag_jax up on this machine and run it. See usage below.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'END'
Usage: bash launch/local.sh [--dry_run] [VERB [FLAGS]]

Makes the environment .venv on the first call (Python 3.11 to 3.13 is all it needs), picks the jax build for
this machine (NVIDIA GPU, TPU or CPU), and runs `ag-jax VERB FLAGS`. Without a verb it runs the quickstart,
which trains a small encoder with and without attention guidance and writes runs/quickstart/report.md.

  bash launch/local.sh
  bash launch/local.sh train --config=configs/quickstart.py --workdir=runs/mine
  bash launch/local.sh train --help

With --dry_run as the first word it prints the commands, those that would install something too, and runs none.

Relative paths start at the repository. Environment variables, all optional:

  PYTHON=python3.12        the Python to make .venv with
  AG_JAX_VENV=FOLDER       where the environment lives (default .venv)
  AG_JAX_ACCELERATOR=cpu   cpu, cuda12, cuda13 or tpu, instead of looking
END
}

if [ $# -eq 1 ] && { [ "$1" = -h ] || [ "$1" = --help ]; }; then
  usage
  exit 0
fi

if [ "${1:-}" = --dry_run ]; then
  dry_run=yes
  shift
fi
set_up base
if [ $# -eq 0 ]; then
  set -- compare --config=configs/quickstart.py --workdir=runs/quickstart
fi
if [ "$dry_run" = yes ]; then
  quoted "$VIRTUAL_ENV/bin/ag-jax" "$@"
  exit 0
fi
exec ag-jax "$@"
