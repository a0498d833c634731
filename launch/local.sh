#!/usr/bin/env bash
# Install ag_jax on this machine and run a command. See usage below.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'END'
Usage: bash launch/local.sh [--dry_run] [VERB [FLAGS]]

Runs `ag-jax VERB FLAGS`. The first call creates the environment .venv with the jax build for this machine (NVIDIA
GPU, TPU or CPU); it needs Python 3.11, 3.12 or 3.13. Without a verb it runs the quickstart, which trains a small
encoder with and without attention guidance and writes runs/quickstart/report.md.

  bash launch/local.sh
  bash launch/local.sh train --config=quickstart:arm=ag --workdir=runs/mine
  bash launch/local.sh help train

With --dry_run as the first word it prints all commands, including those that install packages, and runs none.

Relative paths are relative to the repository. Environment variables, all optional:

  PYTHON=python3.12        Python with which .venv is created
  AG_JAX_VENV=FOLDER       folder of the environment (default .venv)
  AG_JAX_ACCELERATOR=cpu   cpu, cuda12, cuda13 or tpu, instead of detecting it
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
