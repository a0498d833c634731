#!/usr/bin/env bash
# Create a TPU VM of Google Cloud, run ag-jax on all its workers, and delete it. See usage below.
#
# Written for bash 3.2, where an empty array counts as unset: hence ${place[@]+"${place[@]}"}.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'END'
Usage: bash launch/tpu.sh create NAME --accelerator=TYPE [OPTIONS] [-- GCLOUD_FLAGS]
       bash launch/tpu.sh run NAME [--unchecked] -- VERB FLAGS
       bash launch/tpu.sh logs NAME [--slice=0] [--worker=0] [--follow]
       bash launch/tpu.sh stop NAME
       bash launch/tpu.sh delete NAME [--yes]

create   requests a TPU (a queued resource); does not wait for it
run      waits until the TPU is active, copies this checkout to all workers (with uncommitted files, without ignored ones)
         and starts `ag-jax VERB FLAGS`, which does not depend on the connection. Each worker first installs the pinned
         packages. --workdir must be in a bucket, because a TPU's disk is lost with it. On several workers, --hosts=auto
         is added. Before all this, the ag-jax of this checkout's .venv checks the command, unless there is --unchecked
logs     prints the state of the command on each worker, and the end of one worker's log
stop     sends SIGTERM to the command on all workers: a training then saves a checkpoint and ends
delete   deletes the TPU with its disks, after a question. An active TPU costs money until it is deleted

After a preemption, `delete`, `create` and the same `run` resume from the last checkpoint.

Flags of all verbs:
  --zone=ZONE, --project=PROJECT   default: gcloud's configuration (compute/zone, core/project)
  --dry_run                        print the gcloud commands without running them
Flags of create:
  --accelerator=TYPE               v2-N, v3-N, v4-N, v5litepod-N (v5e), v5p-N or v6e-N
  --slices=N                       N TPUs of this type, called NAME-0 and so on, that run one command
  --spot                           cheaper, but may be preempted at any time
  --valid_until=6h                 give up if there is no capacity within this time
  --runtime_version=VERSION        image of the TPU VM, instead of the usual one for the accelerator
  GCLOUD_FLAGS                     more flags of `gcloud compute tpus queued-resources create`

Environment: AG_JAX_TPU_SSH, more flags of `gcloud compute tpus tpu-vm ssh` and `scp`, such as --internal-ip;
AG_JAX_TPU_POLL, seconds between two looks at a TPU that is not active yet (default 30).
END
}

# A new TPU may have the address of an old one: hence no question about its host key.
# shellcheck disable=SC2206 # AG_JAX_TPU_SSH is several words
SSH_FLAGS=(--strict-host-key-checking=no --quiet ${AG_JAX_TPU_SSH:-})

# tpus WORD...: `gcloud compute tpus WORD...`, or in a dry run a line from which a shell reads the same words.
tpus() {
  set -- gcloud compute tpus "$@" ${place[@]+"${place[@]}"}
  if [ "$dry_run" = yes ]; then printf '%q ' "$@" && echo; else "$@"; fi
}

# --- Functions that run on the workers: `on` sends their text -------------------------------------------

# The command holds a lock, which ends with it even if it is killed or the machine restarts.
state() {
  local state=running
  if flock --shared --nonblock ag_jax.lock true; then
    state=$(cat ag_jax.status 2>/dev/null) || state="no exit status: not started, killed, or the machine restarted"
  fi
  echo "$(hostname): $state"
}

# setsid: a session of its own, which neither the end of the connection nor its signals reach. The shell catches SIGTERM,
# so that it writes the exit status of a command that saves and ends. TPU images have Python 3.10, which is too old: with
# uv, local.sh installs another one. Google's firewall rule opens port 8476, but not JAX's 8482 (jax-ml/jax/issues/35905).
start() { # VERB FLAGS
  exec 9>>ag_jax.lock
  flock --wait 5 9 || { echo "$(hostname): a command still runs here" >&2 && exit 1; }
  rm -f ag_jax.status
  mkdir -p ag_jax
  find ag_jax -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
  tar -xzf ag_jax.tar.gz -C ag_jax
  cd ag_jax
  # shellcheck disable=SC2016 # the inner shell expands the words
  setsid nohup bash -c '
    trap : TERM
    export PATH=$HOME/.local/bin:$PATH AG_JAX_ACCELERATOR=tpu JAX_COORDINATOR_PORT=8476 PYTHONUNBUFFERED=1
    python3 -m pip install --quiet --user uv && bash launch/local.sh "$@"
    echo "exit status $?" >../ag_jax.status' ag_jax "$@" </dev/null >>../ag_jax.log 2>&1 &
  echo $! >../ag_jax.pid
}

stop() { flock --shared --nonblock ag_jax.lock true || kill -TERM -- "-$(cat ag_jax.pid)"; }

log() { tail -n 100 "$@" ag_jax.log; }

# --- Here -------------------------------------------------------------------------------------------------

# on NODE WORKER|all FUNCTION WORD...: call one of the functions above on a worker or on all workers of a slice.
on() {
  local node=$1 worker=$2
  shift 2
  tpus tpu-vm ssh "$node" --worker="$worker" "${SSH_FLAGS[@]}" --command="set -e; $(declare -f "$1"); $(printf '%q ' "$@")"
}

everywhere() { # FUNCTION WORD...
  local node failed=0
  for node in "${nodes[@]}"; do on "$node" all "$@" || failed=1; done
  return $failed
}

# Wait until the queued resource is ACTIVE.
wait_for_tpu() {
  local state="" before
  set -- queued-resources describe "$name" --format='value(state.state)'
  if [ "$dry_run" = yes ]; then tpus "$@" && return; fi
  while before=$state && state=$(tpus "$@") && [ "$state" != ACTIVE ]; do
    case $state in
      FAILED | SUSPEND* | DELETING) fail "$name is $state: delete it (bash launch/tpu.sh delete $name) and create it again" ;;
    esac
    if [ "$state" != "$before" ]; then say "$name is $state; waiting for it (Ctrl-C does not end the request)"; fi
    sleep "${AG_JAX_TPU_POLL:-30}"
  done
  [ "$state" = ACTIVE ]
}

# Set `nodes`, the names of the slices, and `workers`, the number of workers of all. A queued resource stays ACTIVE for a
# while after a preemption, so the state of each slice is looked at, too. A dry run assumes one slice with one worker.
find_nodes() {
  local list=$name,READY,1 node state count
  set -- tpu-vm list --filter="queuedResource~/$name\$" \
    --format='csv[no-heading](name.basename(),state,networkEndpoints.len())'
  if [ "$dry_run" = yes ]; then tpus "$@"; else list=$(tpus "$@") || exit 1; fi
  if [ -z "$list" ]; then fail "$name has no machine in this zone: it is not there, not active yet, or was preempted"; fi
  while IFS=, read -r node state count; do
    if [ "$state" != READY ]; then fail "$node is $state, not READY; after a preemption, delete $name and create it again"; fi
    nodes+=("$node") workers=$((workers + count))
  done <<<"$list"
}

create() { # GCLOUD_FLAGS
  if [ -z "$runtime_version" ]; then # https://cloud.google.com/tpu/docs/runtimes
    case $accelerator in
      v2-* | v3-* | v4-*) runtime_version=tpu-ubuntu2204-base ;;
      v5litepod-*) runtime_version=v2-alpha-tpuv5-lite ;;
      v5p-*) runtime_version=v2-alpha-tpuv5 ;;
      v6e-*) runtime_version=v2-alpha-tpuv6e ;;
      *)
        fail "expected --accelerator=TYPE such as v5litepod-8 (a v5e), got ${accelerator:-none}; for a type that" \
          "bash launch/tpu.sh --help does not list, give --runtime_version=VERSION, too"
        ;;
    esac
  fi
  if [ "$slices" -eq 1 ]; then set -- --node-id="$name" "$@"; else set -- --node-count="$slices" --node-prefix="$name" "$@"; fi
  tpus queued-resources create "$name" --accelerator-type="$accelerator" --runtime-version="$runtime_version" \
    ${spot:+--spot} ${valid_until:+--valid-until-duration="$valid_until"} "$@"
  if [ "$dry_run" = no ]; then say "$name is requested; from when it is active, it costs money until it is deleted"; fi
}

# check VERB FLAGS: other verbs than these have no --print_config, or read a run that is in the bucket.
check() {
  local ag_jax=$REPOSITORY/.venv/bin/ag-jax
  if ! printf '%s\n' "$@" | grep '^--workdir=gs://[^/]*/.' >/dev/null; then
    fail "expected a command with --workdir=gs://BUCKET/FOLDER after --, because the disk of a TPU is lost with it"
  fi
  case $1 in
    train | finetune | compare | search | prepare)
      if [ -n "$unchecked" ] || [ ! -x "$ag_jax" ]; then return; fi
      (cd "$REPOSITORY" && JAX_PLATFORMS=cpu "$ag_jax" "$@" --print_config >/dev/null) ||
        fail "ag-jax rejects this command (see above), so nothing is started; --unchecked starts it nevertheless"
      ;;
  esac
}

# Pack the files that git tracks or would add, and that are there, into ag_jax.tar.gz.
pack() {
  local file
  git -C "$REPOSITORY" ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do
      if [ -e "$REPOSITORY/$file" ]; then printf '%s\0' "$file"; fi
    done >files
  COPYFILE_DISABLE=1 tar -czf ag_jax.tar.gz -C "$REPOSITORY" --null -T "$PWD/files"
}

run() { # VERB FLAGS
  local node
  check "$@"
  wait_for_tpu
  find_nodes
  if [ "$workers" -gt 1 ]; then
    case "$1 $* " in
      *" --hosts"* | *" --coordinator"* | "prepare "*) ;; # `prepare` shares its work without a connection
      "train "* | "finetune "* | "compare "* | "search "* | "evaluate "*) set -- "$1" --hosts=auto "${@:2}" ;;
      *) fail "ag-jax $1 runs on one machine, but $name has $workers workers" ;;
    esac
  fi
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cd "$folder"
  if [ "$dry_run" = no ]; then pack; fi
  for node in "${nodes[@]}"; do tpus tpu-vm scp ag_jax.tar.gz "$node:" --worker=all "${SSH_FLAGS[@]}"; done
  everywhere start "$@" || fail "not started on all workers (see above): bash launch/tpu.sh stop $name, then run it again"
  if [ "$dry_run" = no ]; then say "started: ag-jax $*. See it: bash launch/tpu.sh logs $name --follow"; fi
}

main() {
  local verb=${1:-} name=${2:-} place=() nodes=() workers=0 dry_run=no quiet=""
  local accelerator="" slices=1 spot="" valid_until="" runtime_version="" unchecked="" slice=0 worker=0 follow=""
  case $verb in
    create | run | logs | stop | delete) ;;
    -h | --help) usage && return ;;
    *) fail "expected create, run, logs, stop or delete, got ${verb:-nothing}; see bash launch/tpu.sh --help" ;;
  esac
  case $name in
    '' | *[!a-z0-9-]* | [!a-z]*) fail "expected a name of small letters, digits and - after $verb, got ${name:-nothing}" ;;
  esac
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $verb:$1 in
      *:--zone=?* | *:--project=?*) place+=("$1") ;;
      *:--dry_run) dry_run=yes ;;
      create:--accelerator=*) accelerator=${1#*=} ;;
      create:--slices=[1-9]*) slices=${1#*=} ;;
      create:--spot) spot=yes ;;
      create:--valid_until=*) valid_until=${1#*=} ;;
      create:--runtime_version=*) runtime_version=${1#*=} ;;
      run:--unchecked) unchecked=yes ;;
      logs:--slice=[0-9]*) slice=${1#*=} ;;
      logs:--worker=[0-9]*) worker=${1#*=} ;;
      logs:--follow) follow=-F ;;
      delete:--yes) quiet=--quiet ;;
      *) fail "did not expect $1 after $verb (values are written --flag=VALUE); see bash launch/tpu.sh --help" ;;
    esac
    shift
  done
  if [ $# -gt 0 ]; then shift; fi # the --

  case $verb in
    create | run) "$verb" "$@" ;;
    logs)
      find_nodes
      everywhere state || true # a worker that does not answer
      if [ ${#nodes[@]} -gt 1 ]; then name=$name-$slice; fi
      on "$name" "$worker" log $follow
      ;;
    stop) find_nodes && everywhere stop ;;
    delete) tpus queued-resources delete "$name" --force $quiet ;;
  esac
}

main "$@"
