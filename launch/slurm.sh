#!/usr/bin/env bash
# Write and submit a SLURM batch job that runs ag-jax. See usage below.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
# shellcheck source=launch/command.sh
source "$(dirname "${BASH_SOURCE[0]}")/command.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: bash launch/slurm.sh [OPTIONS] -- VERB FLAGS

Submits a batch job to SLURM that runs `ag-jax VERB FLAGS`. Two minutes before its time limit the job saves a checkpoint;
then, and after a preemption or the loss of a node, it is requeued and resumes. Call this on a machine with sbatch, in a
checkout on a disk that all nodes share; --workdir must be on such a disk, too, or in a bucket (gs://...).

  bash launch/slurm.sh --nodes=2 --gpus=4 --time=2-00 -- train --config=ag/table9_tpu_gpu --workdir=/shared/runs/table9
  bash launch/slurm.sh --gpus=1 --array=6 -- compare --config=quickstart --config.comparison.seeds=0,1,2 \
    --workdir=/shared/runs/three_seeds

  --nodes=1          nodes that work on one model together; the flag --hosts=auto is added if there are several
  --gpus=0           GPUs of each node; 0 trains on CPUs
  --time=24:00:00    time limit, in one of sbatch's forms: minutes, HOURS:MINUTES:SECONDS, DAYS-HOURS
  --array=N          N jobs that share the work of compare, finetune, search or prepare
  --at_once=M        at most M jobs of the array run at the same time
  --signal=120       how many seconds before the time limit the checkpoint is saved
  --requeues=100     how often, at most, a job is requeued at its time limit or after a preemption
  --retries=3        how often, at most, a job is requeued that failed because of its nodes (exit status neither 1 nor 2)
  --name=NAME        name of the job (default: ag-jax-VERB)
  --logs=DIR         directory of the jobs' output, on the shared disk (default: runs/slurm in the checkout)
  --sbatch=OPTION    any other option of sbatch, such as --sbatch=--partition=gpu; may be given several times
  --dry_run          print the script and submit nothing

Relative paths are relative to the repository. Jobs run in the environment .venv-slurm-cuda13 (with --gpus) or
.venv-slurm-cpu of the checkout, which the first call creates, because nodes often lack access to package indices. Environment variables,
all optional:

  PYTHON=python3.12             Python with which the environment is created; the nodes must have the same
  AG_JAX_ACCELERATOR=cuda12     jax build for drivers of the nodes that know CUDA 12 only
  AG_JAX_VENV=FOLDER            another folder for the environment
  AG_JAX_CACHE=FOLDER           cache of texts (default ~/.cache/ag_jax), on the shared disk
END_OF_USAGE
}

nodes=1 gpus=0 limit=24:00:00 array="" at_once="" signal=120 requeues=100 retries=3 name="" logs=runs/slurm
options=() command=()

# --- What may be asked for -----------------------------------------------------------------------------

# number FLAG VALUE LEAST: rejects what is no whole number from LEAST on.
number() {
  case $2 in
    '' | *[!0-9]* | ???????*) fail "$1 expects a whole number from $3 on, got '$2'" ;;
  esac
  if [ "$2" -lt "$3" ]; then fail "$1 expects a whole number from $3 on, got $2"; fi
}

# seconds_of TIME: a time limit in one of sbatch's forms, in seconds; empty for anything else.
seconds_of() {
  local d=0 h=0 m=0 s=0
  if [[ $1 =~ ^([0-9]{1,6})$ ]]; then
    m=${BASH_REMATCH[1]}
  elif [[ $1 =~ ^([0-9]{1,6}):([0-9]{1,2})$ ]]; then
    m=${BASH_REMATCH[1]} s=${BASH_REMATCH[2]}
  elif [[ $1 =~ ^([0-9]{1,6}):([0-9]{1,2}):([0-9]{1,2})$ ]]; then
    h=${BASH_REMATCH[1]} m=${BASH_REMATCH[2]} s=${BASH_REMATCH[3]}
  elif [[ $1 =~ ^([0-9]{1,4})-([0-9]{1,2})(:([0-9]{1,2})(:([0-9]{1,2}))?)?$ ]]; then
    d=${BASH_REMATCH[1]} h=${BASH_REMATCH[2]} m=${BASH_REMATCH[4]:-0} s=${BASH_REMATCH[6]:-0}
  else
    return 0
  fi
  echo $((10#$d * 86400 + 10#$h * 3600 + 10#$m * 60 + 10#$s))
}

check_options() {
  local seconds
  number --nodes "$nodes" 1
  number --gpus "$gpus" 0
  number --signal "$signal" 1
  number --requeues "$requeues" 0
  number --retries "$retries" 0
  if [ -n "$array" ]; then number --array "$array" 1; fi
  if [ -n "$at_once" ]; then
    number --at_once "$at_once" 1
    if [ -z "$array" ]; then fail "--at_once=$at_once limits the jobs of an array: give --array=N, too"; fi
  fi
  seconds=$(seconds_of "$limit")
  if [ -z "$seconds" ]; then fail "--time=$limit is no time limit: expected minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, such as 24:00:00"; fi
  if [ "$seconds" -le "$signal" ]; then
    fail "--time=$limit is $seconds seconds, but the job saves its checkpoint $signal seconds before that (--signal=$signal): give more time"
  fi
  case $name in
    *[!A-Za-z0-9._-]*) fail "--name=$name: expected letters, digits and . _ - only" ;;
  esac
}

check_verb() {
  local verb=${command[0]:-}
  case $verb in
    '') fail "what shall run? Give it after --, such as: -- train --config=quickstart:arm=ag --workdir=/shared/runs/first" ;;
    train | evaluate | finetune | compare | search) ;;
    prepare | translate | inspect | import | export | tokenizer | plan) one_node ;;
    *) fail "expected one verb of train, finetune, compare, search, evaluate, translate, inspect, import, export, prepare, tokenizer, plan after --, got $verb" ;;
  esac
  if [ -n "$array" ]; then check_verb_of_array "$array"; fi
  case $verb in
    prepare | plan) ;;
    *) if [ -z "$(flag_of workdir)" ]; then fail "ag-jax $verb needs --workdir=DIR on a disk that all nodes share, such as --workdir=/shared/runs/first"; fi ;;
  esac
}

one_node() {
  if [ "$nodes" -gt 1 ]; then fail "ag-jax ${command[0]} runs on one node: leave --nodes=$nodes out"; fi
}

# absolute PATH: relative to the repository, which is the working directory of the jobs.
absolute() {
  case $1 in
    /* | *://*) printf '%s\n' "$1" ;;
    '~' | '~'/*) printf '%s\n' "$HOME${1#\~}" ;;
    *) printf '%s\n' "$REPOSITORY/$1" ;;
  esac
}

# --- The script ------------------------------------------------------------------------------------------

# Set `mark` to a file that every node must see before the command starts. The call writes it into the directory that jobs
# share; it is empty where there is no such directory on a disk.
choose_mark() {
  local directory=""
  mark=""
  case ${command[0]} in
    train | finetune | compare | search) directory=$(flag_of workdir) ;;
    prepare)
      directory=$(flag_of config.data.cache_dir)
      directory=${directory:-${AG_JAX_CACHE:-$HOME/.cache/ag_jax}}
      ;;
  esac
  directory=$(absolute "$directory")
  case $directory in
    gs://*/* | s3://*/*) ;;
    *://*) fail "$directory is no directory of a bucket: expected one such as gs://BUCKET/runs/first" ;;
    "$REPOSITORY/") ;;
    *) mark=${directory%/}/slurm.txt ;;
  esac
}

# value NAME WORD...: an assignment of a shell variable.
value() { printf '%s=%s\n' "$1" "$(quoted "${@:2}")"; }

directives() {
  local option log="$logs/%x-%j.out" tasks=1
  # JAX takes one GPU in each process of a job with several nodes, and all GPUs in a single process.
  if [ "$nodes" -gt 1 ] && [ "$gpus" -gt 0 ]; then tasks=$gpus; fi
  if [ -n "$array" ]; then log="$logs/%x-%A_%a.out"; fi
  set -- --job-name="$name" --nodes="$nodes" --ntasks-per-node="$tasks" --time="$limit" --signal="B:USR1@$signal" \
    --requeue --open-mode=append
  if [ "$gpus" -gt 0 ]; then set -- "$@" --gres="gpu:$gpus"; fi
  if [ -n "$array" ]; then set -- "$@" --array="1-$array${at_once:+%$at_once}"; fi
  for option in "$@" ${options[@]+"${options[@]}"}; do printf '#SBATCH %s\n' "$option"; done
  printf '#SBATCH --output="%s"\n' "$log"
}

print_script() {
  local platforms=cpu
  if [ "$gpus" -gt 0 ]; then platforms=cuda,cpu; fi # with cuda first, JAX fails where there is no GPU
  printf '#!/bin/bash\n'
  printf '# Written by launch/slurm.sh, for: ag-jax'
  printf ' %q' "${command[@]}"
  printf '\n'
  directives
  printf '\n'
  value repository "$REPOSITORY"
  value environment "$environment"
  value mark "$mark"
  value submitted_on "$(hostname)"
  value logs "$logs"
  printf 'requeues=%s retries=%s\n' "$requeues" "$retries"
  printf 'patience=90 # seconds in which a new file must show on every node; NFS may take a minute\n'
  value 'export JAX_PLATFORMS' "$platforms"
  if [ -n "${AG_JAX_CACHE:-}" ]; then value 'export AG_JAX_CACHE' "$(absolute "$AG_JAX_CACHE")"; fi
  printf 'command=(%s)\n' "$(quoted "${command[@]}")"
  if [ "$nodes" -gt 1 ] && [ -z "$(flag_of hosts)" ]; then printf 'command+=(--hosts=auto)\n'; fi
  sed -n '/^# --- The job/,$p' "$REPOSITORY/launch/slurm_job.sh"
}

submit() {
  local job
  mkdir -p "$logs" || fail "cannot make --logs=$logs, the directory of the jobs' output"
  if [ -n "$mark" ]; then
    { mkdir -p "$(dirname "$mark")" && echo "submitted by launch/slurm.sh on $(hostname), $(date '+%Y-%m-%d %H:%M:%S %z')" >"$mark"; } ||
      fail "cannot write to $(dirname "$mark"): choose a directory that can be written"
  fi
  print_script >"$scratch/script"
  job=$(sbatch --parsable "$scratch/script") || fail "sbatch does not take the job (its message is above); nothing was submitted"
  job=${job%%;*}
  say "submitted job $job; its output: $logs/$name-$job${array:+_K}.out"
  say "squeue -j $job shows it, scancel $job ends it; the same command, submitted again, resumes it"
}

main() {
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        return
        ;;
      --nodes=*) nodes=${1#*=} ;;
      --gpus=*) gpus=${1#*=} ;;
      --time=*) limit=${1#*=} ;;
      --array=*) array=${1#*=} && number --array "$array" 1 ;;
      --at_once=*) at_once=${1#*=} ;;
      --signal=*) signal=${1#*=} ;;
      --requeues=*) requeues=${1#*=} ;;
      --retries=*) retries=${1#*=} ;;
      --name=*) name=${1#*=} ;;
      --logs=*) logs=${1#*=} ;;
      --sbatch=-*) options+=("${1#*=}") ;;
      --sbatch=*) fail "$1: expected an option of sbatch, such as --sbatch=--partition=gpu" ;;
      --dry_run) dry_run=yes ;;
      --nodes | --gpus | --time | --array | --at_once | --signal | --requeues | --retries | --name | --logs | --sbatch)
        fail "write $1=VALUE, in one word"
        ;;
      --)
        shift
        break
        ;;
      -*) fail "unknown option $1; see bash launch/slurm.sh --help" ;;
      *) fail "expected -- before the verb, such as: bash launch/slurm.sh --gpus=1 -- $*" ;;
    esac
    shift
  done
  command=("$@")
  check_options
  check_verb
  name=${name:-ag-jax-${command[0]}}
  logs=$(absolute "$logs")
  choose_mark
  if [ "$dry_run" = no ] && ! command -v sbatch >/dev/null; then
    fail "there is no sbatch here: call this where SLURM is, such as on the login node of a cluster; --dry_run prints the script without it"
  fi
  if [ -z "${AG_JAX_ACCELERATOR:-}" ]; then
    if [ "$gpus" -gt 0 ]; then AG_JAX_ACCELERATOR=cuda13; else AG_JAX_ACCELERATOR=cpu; fi
  fi
  # Not .venv, which launch/local.sh makes anew when it finds another accelerator, under running jobs.
  export AG_JAX_ACCELERATOR AG_JAX_VENV=${AG_JAX_VENV:-.venv-slurm-$AG_JAX_ACCELERATOR}
  environment=$(absolute "$AG_JAX_VENV")
  if [ "$dry_run" = no ]; then (set_up base); fi
  check_command "as a job"
  if [ "$dry_run" = yes ]; then
    print_script
    return
  fi
  submit
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
main "$@"
