#!/usr/bin/env bash
# Commands that tpu_run.sh and tpu_logs.sh run on each worker of a TPU, over ssh. Not meant to be called by hand.
#
#   tpu_worker.sh install                    install Python, and .venv with jax for TPUs
#   tpu_worker.sh start ATTEMPT WORD...      start `ag-jax WORD...`, which continues when the connection ends
#   tpu_worker.sh status                     print one line: ag_jax-worker HOST STATE [CODE] ATTEMPT CHECKSUM_OF_COMMAND
#   tpu_worker.sh log ATTEMPT FROM           print the log of an attempt, from byte FROM on
#   tpu_worker.sh tail LINES [follow]        print the end of the newest log
#   tpu_worker.sh stop [now]                 let the command save a checkpoint and end, or kill it
#
# STATE is `none`, `running`, `exited CODE`, `stopped` (by this script), `interrupted` (by a signal of the machine, as
# before a preemption) or `lost` (ended without a status: the machine was restarted, or the process killed).
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

UV_VERSION=0.13.8
PYTHON_VERSION=3.11 # the one that requirements.txt is made for
ATTEMPTS=$HOME/ag_jax_attempts

# TPU VM images have Python 3.10, which is too old. uv brings a Python of its own and needs no root.
install_python() {
  local uv=$HOME/.local/bin/uv
  if (find_python) 2>/dev/null; then return; fi
  if [ ! -x "$uv" ]; then
    say "this machine's Python is $(python3 --version 2>&1); getting Python $PYTHON_VERSION with uv"
    python3 -m pip install --quiet --user --disable-pip-version-check "uv==$UV_VERSION" ||
      fail "cannot install uv with pip (see above): has this TPU a way to the internet? Without an external address it needs Cloud NAT"
  fi
  "$uv" python install --quiet "$PYTHON_VERSION" || fail "uv cannot get Python $PYTHON_VERSION (see above)"
  PYTHON=$("$uv" python find "$PYTHON_VERSION")
  export PYTHON
}

set_up_for_tpu() {
  install_python
  export AG_JAX_ACCELERATOR=tpu
  set_up base
}

boot() { cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo unknown; }

newest() { cat "$ATTEMPTS/newest" 2>/dev/null; }

# Print the state of an attempt. A process number means nothing after a restart of the machine, hence the boot.
state_of() {
  local pid booted
  if [ ! -e "$ATTEMPTS/$1/status" ] && read -r pid booted <"$ATTEMPTS/$1/pid" && [ "$booted" = "$(boot)" ] && is_running "$pid"; then
    echo running
  elif [ -e "$ATTEMPTS/$1/status" ]; then # looked for again: it may have ended between the two
    cat "$ATTEMPTS/$1/status"
  elif [ -e "$ATTEMPTS/$1/stopped" ]; then
    echo stopped
  else
    echo lost
  fi
}

sum_of() { cksum <"$ATTEMPTS/$1/command" | cut -d ' ' -f 1; }

start() {
  local attempt=$1 previous
  shift
  if previous=$(newest) && [ "$(state_of "$previous")" = running ]; then
    fail "$(hostname) runs a command already: $(tr '\n' ' ' <"$ATTEMPTS/$previous/command")"
  fi
  mkdir -p "$ATTEMPTS/$attempt"
  printf '%s\n' "$@" >"$ATTEMPTS/$attempt/command"
  # setsid: a process group of its own, which neither the end of the connection nor its signals reach.
  setsid nohup bash "${BASH_SOURCE[0]}" run "$attempt" "$@" </dev/null >"$ATTEMPTS/$attempt/log" 2>&1 &
  echo "$! $(boot)" >"$ATTEMPTS/$attempt/pid"
  echo "$attempt" >"$ATTEMPTS/newest"
}

# The process that stays: ag-jax, and then how it ended. ag-jax saves and exits with 0 when it is told to end, which
# happens before a preemption; this process is told too, and so can tell that from a run that is done.
run_attempt() {
  folder=$ATTEMPTS/$1 terminated=no # not local: the traps read them
  shift
  trap 'finish $?' EXIT
  trap 'terminated=yes' TERM INT
  # jax 0.8.1 moved the coordinator to port 8482, which the firewall of a TPU network may not let through;
  # 8476 is the port that Google's rule opens (github.com/jax-ml/jax/issues/35905).
  export JAX_COORDINATOR_PORT=${JAX_COORDINATOR_PORT:-8476} PYTHONUNBUFFERED=1
  set_up_for_tpu
  ag-jax "$@"
}

finish() {
  local state="exited $1"
  if [ "$terminated" = yes ]; then state=interrupted; fi
  if [ -e "$folder/stopped" ]; then state=stopped; fi
  echo "$state" >"$folder/status.partial" && mv "$folder/status.partial" "$folder/status"
}

stop() {
  local attempt pid booted
  if ! attempt=$(newest) || [ "$(state_of "$attempt")" != running ]; then return; fi
  read -r pid booted <"$ATTEMPTS/$attempt/pid"
  touch "$ATTEMPTS/$attempt/stopped"
  if [ "${1:-}" = now ]; then kill -KILL -- "-$pid"; else kill -TERM -- "-$pid"; fi
}

main() {
  local verb=$1 attempt
  shift
  case $verb in
    install) set_up_for_tpu ;;
    start) start "$@" ;;
    run) run_attempt "$@" ;;
    stop) stop "$@" ;;
    status)
      if attempt=$(newest); then
        echo "ag_jax-worker $(hostname) $(state_of "$attempt") $attempt $(sum_of "$attempt")"
      else
        echo "ag_jax-worker $(hostname) none"
      fi
      ;;
    log) tail -c "+$(($2 + 1))" "$ATTEMPTS/$1/log" ;;
    tail)
      attempt=$(newest) || fail "nothing has been started on $(hostname) yet"
      tail -n "$1" ${2:+-F} "$ATTEMPTS/$attempt/log"
      ;;
    *) fail "unknown: $verb" ;;
  esac
}

main "$@"
