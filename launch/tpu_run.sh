#!/usr/bin/env bash
# Run ag-jax on all workers of a TPU, through preemptions. See usage below.
set -euo pipefail
# shellcheck source=launch/tpu_watch.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu_watch.sh"
# shellcheck source=launch/command.sh
source "$(dirname "${BASH_SOURCE[0]}")/command.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: bash launch/tpu_run.sh NAME [OPTIONS] -- VERB FLAGS
       bash launch/tpu_run.sh NAME --stop

Copies this checkout to every worker of the TPU (with changes that are not committed, without files that git ignores),
installs Python and the pinned packages there, starts `ag-jax VERB FLAGS` on all workers, and prints the log of
worker 0 until the command has ended. The exit status is the command's.

  bash launch/tpu_run.sh roberta -- compare --config=ag/table9_tpu_gpu:hardware=tpu --workdir=gs://BUCKET/table9_tpu

The command does not need this terminal. It continues after Ctrl-C or a lost connection, and the same tpu_run.sh
command follows it again. However, the TPU is watched only while tpu_run.sh runs, so run it in tmux or screen. If the
TPU is preempted in this time, tpu_run.sh deletes it, recreates it with the same settings and starts the command, which
resumes from the last checkpoint in its --workdir.

  --retries=2                      how often, at most, a command that failed (exit status neither 0 nor 75) is started
                                   again
  --preemptions=100                how often, at most, a preempted TPU is recreated or an interrupted command (exit
                                   status 75) is started again
  --before=COMMAND                 shell command that each worker runs in the checkout after the installation, such as
                                   one that downloads data
  --stop                           let the command save a checkpoint and end on all workers; the TPU stays
  --zone=ZONE, --project=PROJECT   place of a TPU that was not created by tpu_create.sh in this checkout
  --dry_run                        print the commands without running them

First, `ag-jax VERB FLAGS --print_config` checks the command in this machine's .venv, if there is one. A slice that is
spot or has several workers needs a --workdir=gs://..., because checkpoints on its own disks are lost with the machine.
With several workers, the flag --hosts=auto is added, so that ag-jax finds the other workers.
END_OF_USAGE
}

UNPACK='mkdir -p ag_jax && find ag_jax -mindepth 1 -maxdepth 1 ! -name .venv ! -name runs -exec rm -rf {} + && tar -xzf ag_jax.tar.gz -C ag_jax'

retries=2 preemptions=100 before="" stop=no
failures=0 preempted=0 begun=0 # so far
prepared=no                    # whether this TPU has checkout and packages, as far as we know

# --- What may be asked for -----------------------------------------------------------------------------

check_workdir() {
  local workdir why=""
  workdir=$(flag_of workdir)
  case $workdir in
    gs://*/*) return ;;
    gs://*) fail "--workdir=$workdir names a bucket: expected a folder in it, such as gs://BUCKET/runs/first" ;;
    '') fail "ag-jax ${command[0]} needs --workdir=..., here one like gs://BUCKET/runs/first" ;;
  esac
  if [ "$spot" = yes ]; then
    why="$name is a spot TPU, whose disk is gone after a preemption"
  elif several_hosts; then
    why="$name has several workers, and none sees another's disk"
  fi
  if [ -n "$why" ]; then fail "--workdir=$workdir must be in a bucket, such as gs://BUCKET/runs/first: $why"; fi
  case $workdir in
    /* | "~"* | ../* | runs | runs/* | ./runs | ./runs/*) ;;
    *)
      fail "--workdir=$workdir is in the copy of the checkout on the TPU, which is replaced when the command is started" \
        "again: expected runs/..., an absolute path, or a bucket such as gs://BUCKET/runs/first"
      ;;
  esac
  say "warning: --workdir=$workdir is on the TPU VM's own disk, and will be gone with it; gs://BUCKET/... stays"
}

# --- Getting a TPU ready ---------------------------------------------------------------------------------

# Make the TPU anew, as it was made before, until it is ACTIVE.
make_again() {
  local failed=0
  if [ ${#creation[@]} -eq 0 ]; then
    advise
    fail "it was not made with launch/tpu_create.sh from this checkout, so it cannot be recreated from here"
  fi
  if [ $begun -gt 0 ] && { [ "$state" = NONE ] || [ "$state" = DELETING ] || [ ! -e "$(record)/create" ]; }; then gone_for_good; fi
  while :; do
    if [ ! -e "$(record)/create" ]; then gone_for_good; fi # deleted while this script waited
    preempted=$((preempted + 1))
    if [ $preempted -gt "$preemptions" ]; then fail "$name was lost too often; --preemptions=$preemptions is reached"; fi
    say "making $name again ($preempted of at most $preemptions times)"
    delete
    if create; then wait_until_active; else state=FAILED; fi
    case $state in
      ACTIVE) return ;;
      NONE) gone_for_good ;;
      FAILED) failed=$((failed + 1)) ;;
    esac
    if [ $failed -ge 2 ]; then # twice in a row, so it is not the moment that was wrong
      advise
      exit 1
    fi
    sleep "$POLL"
  done
}

# A preempted TPU is SUSPENDED. One that is not there any more was deleted by somebody, and must not come back to cost money.
gone_for_good() {
  fail "$name was deleted, not preempted, so it is not recreated; run the same command again to recreate it"
}

# Pack what git would commit if everything were added; of a checkout without git, all but the environment and runs.
pack() {
  local file
  if git -C "$REPOSITORY" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -C "$REPOSITORY" ls-files -z --cached --others --exclude-standard |
      while IFS= read -r -d '' file; do
        if [ -e "$REPOSITORY/$file" ] || [ -L "$REPOSITORY/$file" ]; then printf '%s\0' "$file"; fi
      done >"$scratch/files"
    COPYFILE_DISABLE=1 tar -czf "$scratch/ag_jax.tar.gz" -C "$REPOSITORY" --null -T "$scratch/files"
  else
    COPYFILE_DISABLE=1 tar -czf "$scratch/ag_jax.tar.gz" -C "$REPOSITORY" --exclude='./.venv*' --exclude=./runs .
  fi
}

# The first connection to a worker makes and spreads ssh keys, and a new machine needs a moment for them; all workers at
# once would do so against one another. gcloud itself tries ten times.
warm_up() {
  local worker=0
  while [ $worker -lt "${workers:-1}" ]; do
    on_worker $worker true || return 1
    worker=$((worker + 1))
  done
}

# step WORD COMMAND...: run it, with its output in a file that is shown if it fails.
step() {
  local file=$scratch/step-$1
  shift
  "$@" >"$file" 2>&1
}

# prepare: checkout and packages on every worker.
prepare() {
  say "copying the checkout to $workers worker(s) and installing there (a few minutes on a new TPU)"
  step 2-copy to_workers "$scratch/ag_jax.tar.gz" && step 3-unpack on_worker all "$UNPACK" &&
    step 4-install on_workers_ag_jax all install &&
    { [ -z "$before" ] || step 5-before on_worker all "$(line_before)"; }
}

line_before() { printf 'cd ag_jax && bash -c %s\n' "$(quoted "$before")"; }

begin() {
  begun=$((begun + 1))
  attempt=$(date +%Y%m%d-%H%M%S)-$$-$begun # $$: two of these may start in one second
  say "starting: ag-jax ${command[*]}"
  step 6-start on_workers_ag_jax all start "$attempt" "${command[@]}"
}

# A TPU with the command running on all its workers. Fails if that cannot be had on this one.
get_going() {
  local tries=0 last
  while [ $tries -lt 2 ]; do
    rm -f "$scratch"/step-*
    if [ $prepared = yes ] || step 1-connect warm_up; then
      if attach; then return; fi
      if { [ $prepared = yes ] || prepare; } && prepared=yes && begin; then return; fi
    fi
    prepared=no
    look
    if [ "$state" != ACTIVE ]; then return 1; fi
    tries=$((tries + 1))
  done
  for last in "$scratch"/step-*; do :; done
  tail -n 15 "$last" >&2
  fail "$name could not be made ready: ${last##*/step-?-} failed twice (see above)"
}

# --- The whole ---------------------------------------------------------------------------------------------

# On several workers, tell ag-jax to find the others. It would do so by itself on a TPU; with the flag, it is an error if
# there are none to be found.
add_hosts() {
  local verb
  if ! several_hosts; then return; fi
  check_verb_of_hosts "$name has several workers"
  if places_hosts "${command[@]}"; then return; fi
  set -- "${command[@]}"
  verb=$1
  shift
  command=("$verb" --hosts=auto "$@")
}

print_plan() {
  check_workdir
  note "is the TPU there?"
  tpus queued-resources describe "$name" --format='value(state.state)'
  note "copy the checkout (FILES: what git lists and is there), install"
  quoted git -C "$REPOSITORY" ls-files -z --cached --others --exclude-standard
  quoted tar -czf ag_jax.tar.gz -C "$REPOSITORY" --null -T FILES
  note "for each worker, one after another:"
  on_worker 0 true
  note "then on all:"
  to_workers ag_jax.tar.gz
  on_worker all "$UNPACK"
  on_workers_ag_jax all install
  if [ -n "$before" ]; then on_worker all "$(line_before)"; fi
  note "start, then look every $POLL seconds"
  on_workers_ag_jax all start ATTEMPT "${command[@]}"
  on_worker all "$STATUS"
  on_workers_ag_jax 0 log ATTEMPT 0
  if [ ${#creation[@]} -gt 0 ]; then
    note "after a preemption, before all of that again:"
    delete
    create
  fi
}

supervise() {
  while :; do
    look
    case $state in
      ACTIVE) ;;
      CREATING | ACCEPTED | PROVISIONING | WAITING_FOR_RESOURCES | STARTING | RESTARTING | REPAIRING | REIMAGING | UNKNOWN)
        wait_until_active
        ;;
    esac
    if [ "$state" != ACTIVE ]; then
      prepared=no
      make_again
    fi
    if ! get_going; then continue; fi
    follow
    case $outcome in
      done)
        say "done, after $failures failure(s) and $preempted preemption(s). $name still costs money: bash launch/tpu_delete.sh $name"
        return
        ;;
      stopped)
        say "stopped; the same command resumes from its last checkpoint"
        exit 130
        ;;
      preempted)
        prepared=no
        say "$name was preempted"
        ;;
      deleted) gone_for_good ;;
      interrupted)
        preempted=$((preempted + 1))
        say "the command was interrupted on $name, which is still there ($preempted of at most $preemptions)"
        if [ $preempted -gt "$preemptions" ]; then fail "--preemptions=$preemptions is reached"; fi
        prepared=no # the machine may have been set up anew
        ;;
      failed)
        failures=$((failures + 1))
        say "the command failed with exit status $code; the log is in $(record)/$attempt.log"
        stop_all || true # the other workers would wait for the one that failed
        if [ "$code" = 2 ]; then say "that is a wrong command line; see its message" && exit 2; fi
        if [ $failures -gt "$retries" ]; then
          say "failed $failures time(s), and --retries=$retries is reached. $name still costs money: bash launch/tpu_delete.sh $name"
          exit "$code"
        fi
        ;;
    esac
  done
}

leave() {
  say "no longer watching; the started command continues. The same tpu_run.sh command follows it again, --stop ends it"
  exit 130
}

main() {
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        return
        ;;
      --retries=*) whole_number --retries "${1#*=}" && retries=${1#*=} ;;
      --preemptions=*) whole_number --preemptions "${1#*=}" && preemptions=${1#*=} ;;
      --before=*) before=${1#*=} ;;
      --stop) stop=yes ;;
      --zone=*) zone=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --dry_run) dry_run=yes ;;
      --)
        shift
        break
        ;;
      -*) refuse_option "$1" ;;
      *) take_name "$1" ;;
    esac
    shift
  done
  command=("$@")
  recall
  settle_place
  if [ $stop = yes ]; then
    if [ "$dry_run" = yes ]; then
      on_workers_ag_jax all stop
      return
    fi
    first_look
    if [ "$state" = ACTIVE ] && ! stop_all; then
      fail "the command has not ended on all workers of $name; see bash launch/tpu_logs.sh $name"
    fi
    say "nothing runs on $name any more"
    return
  fi
  if [ ${#command[@]} -eq 0 ]; then fail "what shall run? Give it after --, such as: -- train --config=FILE --workdir=gs://BUCKET/runs/first"; fi
  case ${command[0]} in
    -*) fail "expected a verb such as train after --, got ${command[0]}" ;;
  esac
  add_hosts
  check_command "on the TPU"
  if [ "$dry_run" = yes ]; then
    print_plan
    return
  fi

  first_look
  if [ ${#creation[@]} -eq 0 ]; then # only a node tells what it is
    if [ "$state" != ACTIVE ]; then wait_until_active; fi
    if [ "$state" != ACTIVE ]; then
      advise
      exit 1
    fi
  fi
  check_workdir
  add_hosts # once more, for a TPU of which only the look told that it has several workers
  pack
  exec 3>&2 # the trap may come while standard error goes to a file
  trap 'leave 2>&3' INT
  supervise
}

main "$@"
