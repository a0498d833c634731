#!/usr/bin/env bash
# Run ag-jax on the NVIDIA GPUs of this machine. See usage below.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: bash launch/gpu.sh [--gpus=0,1,...] [--dry_run] [VERB FLAGS]

Runs `ag-jax VERB FLAGS` on NVIDIA GPUs, like launch/local.sh, but never on the CPU by accident. It checks that the
GPUs exist and that their driver is new enough, and prints which GPUs it uses.

  bash launch/gpu.sh --gpus=0,1,2,3 compare --config=ag/table9_tpu_gpu:hardware=gpu --workdir=runs/table9_gpu

  --gpus=0,1   GPUs to use, numbered as by nvidia-smi (default: all)
  --dry_run    print the command and run nothing; this needs no GPU

One process uses all of the GPUs. They are used for data parallelism unless --config.mesh.* is set.

Without a verb it runs the quickstart. Environment variables are those of launch/local.sh. No XLA flags are set, because
none is known to help; set XLA_FLAGS to use your own.
END_OF_USAGE
}

# print_command GPUS BUILD WORD...: GPUS is empty for all of them.
print_command() {
  local gpus=$1 build=$2
  shift 2
  quoted env ${gpus:+"CUDA_VISIBLE_DEVICES=$gpus"} CUDA_DEVICE_ORDER=PCI_BUS_ID JAX_PLATFORMS=cuda,cpu \
    AG_JAX_ACCELERATOR="$build" bash "$REPOSITORY/launch/local.sh" "$@"
}

main() {
  local wanted="" number name used count=0 found="" seen="" accelerator="" because=""
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        return
        ;;
      --gpus=*) wanted=${1#*=} ;;
      --gpus) fail "write --gpus=0,1, in one word" ;;
      --dry_run) dry_run=yes ;;
      *) break ;;
    esac
    shift
  done

  if [ "$dry_run" = yes ] && ! nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null; then
    say "no GPU was found here. On a machine with GPUs this would run, with cuda12 where the driver knows CUDA 12 only:"
    print_command "${wanted:-${CUDA_VISIBLE_DEVICES:-}}" "${AG_JAX_ACCELERATOR:-cuda13}" "$@"
    return
  fi
  command -v nvidia-smi >/dev/null || fail "no nvidia-smi here, so no NVIDIA driver: install it, or use launch/local.sh for the CPU"
  nvidia-smi --query-gpu=index,memory.used,name --format=csv,noheader,nounits >"$scratch" 2>&1 ||
    fail "nvidia-smi fails: $(head -n 1 "$scratch"). Is the driver running?"
  found=$(cut -d , -f 1 "$scratch" | tr -d ' ' | tr '\n' ' ')
  if [ -z "${found// /}" ]; then fail "nvidia-smi shows no GPU on this machine; launch/local.sh runs on the CPU"; fi

  if [ -n "${CUDA_VISIBLE_DEVICES:-}" ] && [ -z "$wanted" ]; then wanted=$CUDA_VISIBLE_DEVICES; fi
  if [ -z "$wanted" ]; then wanted=$(tr ' ' , <<<"${found% }"); fi
  for number in ${wanted//,/ }; do
    case " $found " in
      *" $number "*) ;;
      *) fail "--gpus=$wanted: there is no GPU $number here; there are ${found% }" ;;
    esac
    case " $seen " in
      *" $number "*) fail "--gpus=$wanted names GPU $number twice" ;;
    esac
    seen="$seen $number" count=$((count + 1))
    IFS=, read -r _ used name <<<"$(grep "^ *$number," "$scratch")"
    say "GPU $number:$name"
    # JAX takes three quarters of a GPU's memory at once, and fails where that is not free.
    if [ "${used// /}" -gt 1024 ] 2>/dev/null; then
      say "warning: another program uses${used} MiB of GPU $number; choose others with --gpus, or set XLA_PYTHON_CLIENT_MEM_FRACTION"
    fi
  done
  if [ $count -eq 0 ]; then fail "--gpus=$wanted names no GPU"; fi

  choose_accelerator
  case $accelerator in
    cuda*) export AG_JAX_ACCELERATOR=$accelerator ;;
    *)
      if [ -n "${AG_JAX_ACCELERATOR:-}" ]; then fail "AG_JAX_ACCELERATOR=$AG_JAX_ACCELERATOR is no GPU build of jax: expected cuda12 or cuda13"; fi
      fail "jax cannot use these GPUs: $because"
      ;;
  esac
  # CUDA counts the fastest GPU first unless told otherwise, and nvidia-smi by the bus.
  export CUDA_VISIBLE_DEVICES=$wanted CUDA_DEVICE_ORDER=PCI_BUS_ID JAX_PLATFORMS=cuda,cpu
  if [ $dry_run = yes ]; then
    print_command "$wanted" "$AG_JAX_ACCELERATOR" "$@"
    return
  fi
  say "running on $count GPU(s)"
  rm -f "$scratch"
  exec bash "$REPOSITORY/launch/local.sh" "$@"
}

scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
main "$@"
