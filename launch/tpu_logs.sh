#!/usr/bin/env bash
# Show the state and the logs of a TPU's workers. See usage below.
set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: bash launch/tpu_logs.sh NAME [OPTIONS]

Prints the state of the TPU, the state of the command on each worker, and the end of one worker's log.

  --worker=0                       worker whose log is printed
  --lines=100                      number of lines to print
  --follow                         keep printing new lines until Ctrl-C, which does not end the command
  --zone=ZONE, --project=PROJECT   place of a TPU that was not created by tpu_create.sh in this checkout
  --dry_run                        print the commands without running them
END_OF_USAGE
}

main() {
  local worker=0 lines=100 follow=""
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        return
        ;;
      --worker=*) worker=${1#*=} ;;
      --lines=*) lines=${1#*=} ;;
      --follow) follow=follow ;;
      --zone=*) zone=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --dry_run) dry_run=yes ;;
      -*) refuse_option "$1" ;;
      *) take_name "$1" ;;
    esac
    shift
  done
  whole_number --worker "$worker"
  whole_number --lines "$lines"
  recall
  settle_place

  if [ "$dry_run" = no ]; then
    first_look
    if [ "$state" != ACTIVE ]; then
      say "$name is $state"
      advise
      exit 1
    fi
    say "$name is ACTIVE: $accelerator with $workers worker(s)"
    on_workers_ag_jax all status 2>"$scratch/said" | sort ||
      fail "not all workers answer: $(tail -n 1 "$scratch/said")"
    on_workers_ag_jax "$worker" tail "$lines" $follow 2>/dev/null || fail "worker $worker has no log: nothing was started there yet"
  else
    on_workers_ag_jax all status
    on_workers_ag_jax "$worker" tail "$lines" $follow
  fi
}

main "$@"
