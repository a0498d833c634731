# shellcheck shell=bash disable=SC2154
# The part of a SLURM batch script that is the same for all jobs. launch/slurm.sh writes the lines before it, which set
# repository, environment, mark, submitted_on, logs, requeues, retries, patience and command.

# --- The job ---------------------------------------------------------------------------------------------
stopped="" # why the command was told to stop
# The number of one job of an array is also that of the whole array, which only the other form tells apart.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}

say() { printf 'ag_jax: %s\n' "$*" >&2; }

# SLURM sends USR1 to this shell some time before the limit. The command stops at SIGTERM, with everything saved.
stop() {
  stopped="the time limit is near"
  say "$stopped: telling the command to save and stop"
  scancel --signal=TERM "$job" # to all steps, but not to this shell
}

# step OPTION... COMMAND...: run a job step to its end, and leave its exit status in `status`.
step() {
  srun "$@" &
  local pid=$!
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done # a signal interrupts `wait`
  wait "$pid"
  status=$?
}

# requeue REASON: SLURM ends this shell and starts the job again. A job that somebody has cancelled stays so.
requeue() {
  say "$1: requeueing the job, which resumes from its last checkpoint"
  trap - USR1
  if ! scontrol --oneliner show job "$job" | grep -E ' JobState=RUNNING( |$)' >/dev/null; then
    say "the job was cancelled or requeued by somebody else"
  elif scontrol requeue "$job"; then
    sleep 60
  else
    say "scontrol could not requeue the job: submit the same command again, it resumes"
  fi
  exit 1
}

# resume REASON: after something stopped the command, which is no failure.
resume() {
  if [ "${SLURM_RESTART_COUNT:-0}" -lt "$requeues" ]; then requeue "$1"; fi
  say "$1, and --requeues=$requeues is reached; submitted again, the same command resumes"
  exit 1
}

# failed WHAT: after a failure that may be over when the job is started again.
failed() {
  local file="$logs/$SLURM_JOB_ID.failures" count
  printf '%s %s: %s\n' "$(date '+%Y-%m-%d %H:%M:%S')" "${SLURM_JOB_NODELIST:-}" "$1" >>"$file"
  count=$(($(wc -l <"$file")))
  if [ "$count" -le "$retries" ]; then requeue "$1, $count of at most $retries retries"; fi
  say "$1, and --retries=$retries is reached (see $file); submitted again, the same command resumes"
  exit 1
}

# shellcheck disable=SC2016 # for the shell of each node
check='
environment=$1 mark=$2 submitted_on=$3 patience=$4 node=${SLURMD_NODENAME:-$(hostname)}
for path in "$environment/bin/ag-jax" ${mark:+"$mark"}; do
  while [ ! -e "$path" ] && [ "$SECONDS" -lt "$patience" ]; do sleep 1; done
  if [ ! -e "$path" ]; then
    echo "ag_jax: node $node does not see $path, which is there on $submitted_on: the checkout and --workdir (of prepare: the cache) must be on a disk that all nodes share" >&2
    exit 3
  fi
done
if ! said=$("$environment/bin/python" -c "import ag_jax" 2>&1); then
  echo "ag_jax: node $node cannot run $environment/bin/python, made on $submitted_on ($(printf "%s" "$said" | tail -n 1)): set PYTHON to one that all nodes have, and remove that folder" >&2
  exit 3
fi'

trap stop USR1
say "job ${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID, }$SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1)), $(date '+%Y-%m-%d %H:%M:%S')"
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi # srun does not read the other
step --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --chdir=/ \
  bash -c "$check" check "$environment" "$mark" "$submitted_on" "$patience"
if [ $status -eq 3 ]; then exit 1; fi # no start would help
if [ $status -eq 143 ]; then resume "a signal stopped the check of the nodes"; fi
if [ $status -ne 0 ]; then failed "the nodes could not be checked (status $status)"; fi

cd "$repository" || exit 1
export AG_JAX_STOPPED="$logs/$SLURM_JOB_ID.stopped" # the command writes it if a signal stops it before its end
rm -f "$AG_JAX_STOPPED"
if [ -z "$stopped" ]; then
  PATH=$environment/bin:$PATH step --kill-on-bad-exit=1 "$environment/bin/ag-jax" "${command[@]}"
fi
case $status in
  1 | 2)
    say "the command failed with status $status; the same would happen again"
    exit $status
    ;;
esac
# During a preemption with a grace time, SLURM sends SIGTERM to the command but nothing to this shell. Only training
# saves and ends with status 0 then; the preparation of text, for example, ends by the signal (143).
if [ -z "$stopped" ] && { [ -e "$AG_JAX_STOPPED" ] || [ $status -eq 143 ]; }; then stopped="a signal stopped the command"; fi
rm -f "$AG_JAX_STOPPED"
if [ -n "$stopped" ]; then resume "$stopped"; fi
if [ $status -ne 0 ]; then failed "the command failed with status $status"; fi
say "done, $(date '+%Y-%m-%d %H:%M:%S')"
