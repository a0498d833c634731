#!/usr/bin/env bash
# Install ag_jax on this machine and run a command. See usage below.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'END'
Usage: bash launch/local.sh [VERB [FLAGS]]

Runs `ag-jax VERB FLAGS` in the repository. The first call makes the environment .venv with the build of jax for this
machine (NVIDIA GPU, TPU or CPU), by uv if it is on PATH, otherwise by pip of Python 3.11, 3.12 or 3.13. Without a verb it
runs the quickstart, which trains a small encoder with and without attention guidance and writes
runs/quickstart/report.md.

  bash launch/local.sh
  bash launch/local.sh train --config=quickstart:arm=ag --workdir=runs/mine
  bash launch/local.sh help train

Environment variables, all optional:

  PYTHON=python3.12        Python with which .venv is made
  AG_JAX_VENV=FOLDER       folder of the environment (default .venv)
  AG_JAX_ACCELERATOR=cpu   cpu, cuda12, cuda13 or tpu, instead of detecting it
END
}

case ${1:-} in
  -h | --help) usage && exit ;;
  "") set -- compare --config=quickstart --workdir=runs/quickstart ;;
esac
set_up base
# Pages of 2 MiB for arrays: a training step on a CPU is faster with them.
export GLIBC_TUNABLES=${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}
exec ag-jax "$@"
