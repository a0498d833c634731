# shellcheck shell=bash
# Functions by which tpu_run.sh follows the command that it has started. Source this file; it sources tpu.sh.

# shellcheck source=launch/tpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

STATUS='if [ -e ag_jax/launch/tpu_worker.sh ]; then bash ag_jax/launch/tpu_worker.sh status; else echo ag_jax-worker new none; fi'
GRACE=5     # looks at a spot TPU whose command has failed, before that counts as the command's own failure
AGAIN=75    # the exit status of a worker that has lost another one: start again, it was no fault of the command's
PATIENCE=10 # looks at a command that was told to end, before it is killed

command=()                    # the words after ag-jax
attempt="" outcome="" code="" # the command's name on the workers, what became of it, and its exit status

# ask_workers: the status of each in $scratch/status. Fails unless all answer.
ask_workers() {
  on_worker all "$STATUS" >"$scratch/status" 2>"$scratch/said" || true
  [ "$(grep -c '^ag_jax-worker ' "$scratch/status")" -ge "${workers:-1}" ]
}

count() { grep -c "^ag_jax-worker [^ ]* $1" "$scratch/status" || true; }

# judge: from what the workers say, set `outcome`, or leave it empty while the command runs.
judge() {
  local failed
  failed=$(sed -n 's/^ag_jax-worker [^ ]* exited \([1-9][0-9]*\) .*/\1/p' "$scratch/status" | grep -vx $AGAIN | head -n 1) || true
  if [ "$(count stopped)" -gt 0 ]; then
    outcome=stopped
  elif [ -n "$failed" ]; then
    outcome=failed code=$failed
  elif [ "$(count interrupted)" -gt 0 ] || [ "$(count lost)" -gt 0 ] || [ "$(count "exited $AGAIN")" -gt 0 ]; then
    outcome=interrupted
  elif [ "$(count 'exited 0')" -ge "$workers" ]; then
    outcome='done'
  fi
}

# Print what worker 0 has logged since the last look, and keep it in runs/tpu/NAME.
show_log() {
  local log
  mkdir -p "$(record)"
  log=$(record)/$attempt.log
  touch "$log"
  on_workers_ag_jax 0 log "$attempt" "$(wc -c <"$log" | tr -d ' ')" 2>/dev/null | tee -a "$log" || true
}

# follow: until the command has ended or the TPU has gone; sets `outcome` to done, failed (with `code`), stopped,
# interrupted, preempted or deleted.
follow() {
  local unanswered=0
  outcome="" code=""
  while :; do
    if ask_workers; then
      unanswered=0
      show_log
      judge
    else
      unanswered=$((unanswered + 1))
      look_for_loss
      case $outcome$state in
        UNKNOWN) # perhaps it is this machine that has no network; the command does not mind
          if [ $((unanswered % UNANSWERED)) -eq 1 ]; then say "no answer from $name; gcloud says $trouble. Asking again"; fi
          ;;
        ACTIVE | *ING) if [ $unanswered -ge $UNANSWERED ]; then silent; fi ;;
      esac
    fi
    if [ -n "$outcome" ]; then break; fi
    sleep "$POLL"
  done
  if [ "$outcome" = failed ] || [ "$outcome" = interrupted ]; then look_for_preemption; fi
}

# Look, and set `outcome` if the TPU is lost.
look_for_loss() {
  look
  case $state in
    SUSPENDING | SUSPENDED | FAILED) outcome=preempted ;;
    DELETING | NONE) outcome=deleted ;;
  esac
}

# Workers that say nothing for long are lost, whatever Google says of them, if the TPU may be preempted.
silent() {
  if [ "$spot" = yes ] && [ ${#creation[@]} -gt 0 ]; then
    say "no answer from all workers of $name for a long time"
    outcome=preempted
  else
    tail -n 5 "$scratch/said" >&2
    fail "not all workers of $name answer (state $state; gcloud's words are above). The command may still be running:" \
      "the same tpu_run.sh command follows it again"
  fi
}

# In a preemption the command often fails some time before Google says so.
look_for_preemption() {
  local looks=0
  if [ "$spot" != yes ] || [ "$code" = 2 ]; then looks=$((GRACE - 1)); fi # one look: it could not be, or is not, preempted
  while [ $looks -lt $GRACE ]; do
    look_for_loss
    if [ "$outcome" = preempted ] || [ "$outcome" = deleted ]; then return; fi
    looks=$((looks + 1))
    if [ $looks -lt $GRACE ]; then sleep "$POLL"; fi
  done
}

# attach: does every worker run this very command already? Then follow that. Fails if not; ends if another one runs.
attach() {
  local sum running
  ask_workers || return 1
  running=$(count running)
  if [ "$running" -eq 0 ]; then return 1; fi
  sum=$(printf '%s\n' "${command[@]}" | cksum | cut -d ' ' -f 1)
  if [ "$(grep -c "^ag_jax-worker [^ ]* running [^ ]* $sum\$" "$scratch/status")" -lt "$running" ]; then
    fail "$name runs another command. See it: bash launch/tpu_logs.sh $name. End it: bash launch/tpu_run.sh $name --stop"
  fi
  if [ "$running" -lt "$workers" ]; then
    say "the command runs on $running of $workers workers only; ending it there"
    stop_all || true
    return 1
  fi
  attempt=$(sed -n 's/^ag_jax-worker [^ ]* running \([^ ]*\) .*/\1/p' "$scratch/status" | head -n 1)
  say "the command runs already; following it"
}

# stop_all: and wait until it has ended everywhere. It saves first, but a worker that waits for another one that has
# gone never comes to that, so in the end it is killed. Fails if not all workers say that it has ended.
stop_all() {
  local looks=0
  on_workers_ag_jax all stop >"$scratch/stopped" 2>&1 || true
  until ask_workers && [ "$(count running)" -eq 0 ]; do
    looks=$((looks + 1))
    if [ $looks -eq $PATIENCE ]; then on_workers_ag_jax all stop now >"$scratch/stopped" 2>&1 || true; fi
    if [ $looks -ge $UNANSWERED ]; then return 1; fi
    sleep "$POLL"
  done
}
