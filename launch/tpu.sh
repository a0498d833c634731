# shellcheck shell=bash
# Functions of tpu_create.sh, tpu_run.sh, tpu_logs.sh and tpu_delete.sh: query the state of a TPU, create it, wait for it,
# and save how it was created. Source this file; it sources setup.sh.
#
# A TPU is a queued resource with one node; both have the name that the user chose. Several slices are nodes of one queued
# resource, called NAME-0, NAME-1 and so on. The words of the command that created it are saved in runs/tpu/NAME/create, one
# word per line, so that a preempted TPU can be recreated with the same settings.
#
# Environment variables, all optional:
#
#   AG_JAX_TPU_POLL   seconds between two queries of a TPU's state (default 30)
#   AG_JAX_TPU_SSH    further flags of `gcloud compute tpus tpu-vm ssh` and `scp`, such as --internal-ip
#
# Written for bash 3.2, where an empty array counts as unset: hence ${place[@]+"${place[@]}"}.

# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

POLL=${AG_JAX_TPU_POLL:-30}
UNANSWERED=20 # so many looks in a row without the answer that is needed, and we give up

name="" project="" zone="" place=() # what the command line says
state="" accelerator="" spot="" workers=""     # what is known of the TPU, `workers` of all slices; set by `look` and `recall`
slices=1                                       # set by `recall` and tpu_create.sh
creation=()                                    # how it was made; set by `recall` and tpu_create.sh
answer="" trouble=""                           # of the last question to gcloud

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# --- Commands ----------------------------------------------------------------------------------------

# In a dry run, a comment among the commands.
note() { if [ "$dry_run" = yes ]; then printf '# %s\n' "$*"; fi; }

# An option with its value apart, such as `--zone us-west4-a`, is a common slip.
refuse_option() {
  case $1 in
    --*=*) fail "unknown option $1; see bash $0 --help" ;;
    --zone | --project | --accelerator | --slices | --runtime_version | --valid_until | --retries | --preemptions | --before | \
      --worker | --lines) fail "write $1=VALUE, in one word" ;;
    *) fail "did not expect $1; see bash $0 --help" ;;
  esac
}

whole_number() {
  case $2 in
    '' | *[!0-9]*) fail "$1 expects a whole number, got $2" ;;
  esac
}

take_name() {
  if [ -n "$name" ]; then fail "expected one name, got $name and $1"; fi
  case $1 in
    *[!a-z0-9-]* | [!a-z]* | *-) fail "a TPU's name has small letters, digits and -, begins with a letter: got $1" ;;
  esac
  name=$1
}

# Names the project and the zone for every later call. A zone that is given nowhere is gcloud's default, and
# fixed here, so that a TPU is found again after that default has changed.
settle_place() {
  if [ -z "$name" ]; then fail "which TPU? Give its name; see bash $0 --help"; fi
  if [ "$dry_run" = no ] && ! command -v gcloud >/dev/null; then
    fail "gcloud is not installed: https://cloud.google.com/sdk/docs/install, then gcloud auth login"
  fi
  if [ -z "$zone" ] && [ "$dry_run" = no ]; then zone=$(gcloud config get-value compute/zone 2>/dev/null) || zone=""; fi
  if { [ -z "$zone" ] || [ "$zone" = "(unset)" ]; } && [ "$dry_run" = no ]; then
    fail "no zone: give --zone=ZONE, such as --zone=us-west4-a, or set it once: gcloud config set compute/zone ZONE"
  fi
  if [ -z "$project" ] && [ "$dry_run" = no ]; then
    project=$(gcloud config get-value core/project 2>/dev/null) || project=""
    if [ -z "$project" ] || [ "$project" = "(unset)" ]; then
      fail "no project: give --project=PROJECT, or set it once: gcloud config set project PROJECT"
    fi
  fi
  place=()
  if [ -n "$zone" ]; then place+=(--zone="$zone"); fi
  if [ -n "$project" ]; then place+=(--project="$project"); fi
}

tpus() { run gcloud compute tpus "$@" ${place[@]+"${place[@]}"} --quiet; }

# --- What a TPU is -----------------------------------------------------------------------------------

# runtime_version ACCELERATOR: the image that Google names for JAX (https://cloud.google.com/tpu/docs/runtimes).
runtime_version() {
  case ${1##*-} in
    '' | *[!0-9]*) fail "expected an accelerator such as v5litepod-8, got $1" ;;
  esac
  case $1 in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5e-*) fail "Google's name for $1 is v5litepod-${1##*-}" ;;
    *) fail "unknown accelerator $1: expected v2-N, v3-N, v4-N, v5litepod-N, v5p-N or v6e-N;" \
      "for another one give --runtime_version=VERSION too" ;;
  esac
}

# The number in an accelerator's name counts TensorCores up to v5p (two a chip) and chips after; in either
# case the largest slice of a single host is called -8.
several_hosts() {
  if [ "$slices" -gt 1 ]; then return; fi
  if [ -n "$workers" ]; then [ "$workers" -gt 1 ]; else [ "${accelerator##*-}" -gt 8 ] 2>/dev/null; fi
}

# ask WORD...: `gcloud compute tpus WORD...`, its output in `answer`. Fails where there is no such thing (answer
# is NONE then), and where gcloud itself fails (answer is UNKNOWN, and `trouble` has its last words).
ask() {
  if answer=$(gcloud compute tpus "$@" ${place[@]+"${place[@]}"} --quiet 2>"$scratch/said"); then return 0; fi
  trouble=$(grep -m 1 '^ERROR' "$scratch/said" || tail -n 1 "$scratch/said")
  if grep -i -e 'NOT_FOUND' -e 'was not found' -e 'could not be found' "$scratch/said" >/dev/null; then
    answer=NONE
  else
    answer=UNKNOWN
  fi
  return 1
}

# nodes: the names of the TPU's nodes, one for each slice.
nodes() {
  local number=0
  if [ "$slices" -eq 1 ]; then
    printf '%s\n' "$name"
    return
  fi
  while [ $number -lt "$slices" ]; do
    printf '%s-%s\n' "$name" $number
    number=$((number + 1))
  done
}

# look: set `state` to ACTIVE (the TPU can be used), to another state of a queued resource, NONE or UNKNOWN;
# and, once there is a node, `accelerator`, `spot` and `workers`. The node is asked too, because a queued
# resource stays ACTIVE for a while after its node has been preempted, and because a TPU may have none.
look() {
  local queued node total=0
  if ask queued-resources describe "$name" --format='value(state.state)' || [ "$answer" = NONE ]; then
    queued=$answer
  else
    state=UNKNOWN
    return
  fi
  case $queued in
    ACTIVE | NONE) ;;
    *)
      state=$queued
      return
      ;;
  esac
  for node in $(nodes); do
    look_at_node "$node"
    if [ "$state" != ACTIVE ]; then break; fi # the command needs all slices
    total=$((total + workers))
  done
  if [ "$state" = ACTIVE ]; then workers=$total; fi
  if [ "$queued" = ACTIVE ] && [ "$state" = NONE ]; then state=SUSPENDED; fi
}

# look_at_node NODE: the part of `look` that concerns one node.
look_at_node() {
  local node is_spot is_preemptible
  if ! ask tpu-vm describe "$1" --format='csv[no-heading](state,acceleratorType,schedulingConfig.spot,schedulingConfig.preemptible,networkEndpoints.len())'; then
    state=$answer
    return
  fi
  IFS=, read -r node accelerator is_spot is_preemptible workers <<<"$answer"
  spot=no
  if [ "$is_spot$is_preemptible" != "" ] && [ "$is_spot$is_preemptible" != FalseFalse ]; then spot=yes; fi
  case $node in
    READY) state=ACTIVE ;;
    CREATING | STARTING | RESTARTING | REPAIRING | REIMAGING | UNHIDING) state=$node ;;
    *) state=SUSPENDED ;; # PREEMPTED, TERMINATED, STOPPED, DELETING, ...: it does not come back by itself
  esac
}

# The first look of a command: where gcloud cannot answer at all, it says so at once.
first_look() {
  look
  if [ "$state" = UNKNOWN ]; then
    fail "gcloud does not answer: $trouble (log in with gcloud auth login; check the project, the zone and the network)"
  fi
}

# wait_until_active: return when `state` is ACTIVE, or is one that waiting does not change.
wait_until_active() {
  local before="" looks=0
  while :; do
    look
    case $state in
      ACTIVE | FAILED | SUSPENDED | NONE) return ;;
    esac
    if [ "$state" != "$before" ] || [ $((looks % 20)) -eq 0 ]; then
      case $state in
        UNKNOWN) say "$name: gcloud says $trouble; asking again" ;;
        *) say "$name: $state, $((SECONDS / 60)) minutes after the start" ;;
      esac
    fi
    before=$state looks=$((looks + 1))
    sleep "$POLL"
  done
}

# advise: what to do about a TPU that is not ACTIVE and will not become so.
advise() {
  case $state in
    FAILED)
      say "$name FAILED: no capacity before --valid_until was over, no quota for $accelerator in ${zone:-this zone}, or a zone" \
        "that does not have it. The reason is in: $(quoted gcloud compute tpus queued-resources describe "$name" "${place[@]}")"
      say "then: bash launch/tpu_delete.sh $name, and create it again, perhaps in another zone"
      ;;
    SUSPENDING | SUSPENDED)
      say "$name is $state: it was preempted, or stopped. A suspended TPU keeps its name and its quota until it is" \
        "deleted: bash launch/tpu_delete.sh $name"
      ;;
    NONE) say "there is no TPU $name in ${zone:-this zone}: make it with bash launch/tpu_create.sh $name --accelerator=..." ;;
  esac
}

# --- Making and deleting one ---------------------------------------------------------------------------

record() { printf '%s\n' "$REPOSITORY/runs/tpu/$name"; }

remember() {
  if [ "$dry_run" = yes ]; then return; fi
  if ! mkdir -p "$(record)" || ! printf '%s\n' "${creation[@]}" >"$(record)/create"; then
    fail "cannot write to $(record)"
  fi
}

# recall: read back how $name was made, and with it its place, unless the command line gives another one.
recall() {
  local word
  creation=() slices=1
  [ -n "$name" ] && [ -e "$(record)/create" ] || return 0
  spot=no
  while IFS= read -r word; do
    creation+=("$word")
    case $word in
      --zone=*) if [ -z "$zone" ]; then zone=${word#*=}; fi ;;
      --project=*) if [ -z "$project" ]; then project=${word#*=}; fi ;;
      --accelerator-type=*) accelerator=${word#*=} ;;
      --node-count=*) slices=${word#*=} ;;
      --spot) spot=yes ;;
    esac
  done <"$(record)/create"
  for word in ${zone:+"--zone=$zone"} ${project:+"--project=$project"}; do
    if ! printf '%s\n' "${creation[@]}" | grep -Fx -e "$word" >/dev/null; then # another TPU of the same name
      # shellcheck disable=SC2034 # tpu_run.sh reads spot
      creation=() accelerator="" spot="" slices=1
      return 0
    fi
  done
}

create() {
  if run gcloud "${creation[@]}"; then return; fi
  say "gcloud did not create $name (its message is above). Common reasons: no quota for this accelerator in this zone" \
    "(IAM & Admin > Quotas), the Cloud TPU API is off (gcloud services enable tpu.googleapis.com), or billing is off"
  return 1
}

# delete: also where it is half gone already. --force deletes the node with the queued resource.
delete() {
  local tries=0 node left
  if [ "$dry_run" = yes ]; then
    tpus queued-resources delete "$name" --force
    return
  fi
  while :; do
    if ask queued-resources describe "$name" --format='value(state.state)'; then
      tpus queued-resources delete "$name" --force >"$scratch/delete" 2>&1 || trouble=$(tail -n 1 "$scratch/delete")
    elif [ "$answer" = NONE ]; then
      left=no
      for node in $(nodes); do
        if ! ask tpu-vm describe "$node" --format='value(state)' && [ "$answer" = NONE ]; then continue; fi
        left=yes
        tpus tpu-vm delete "$node" >"$scratch/delete" 2>&1 || trouble=$(tail -n 1 "$scratch/delete")
      done
      if [ $left = no ]; then return; fi
    fi
    if [ "$answer" != UNKNOWN ]; then tries=$((tries + 1)); fi
    if [ $tries -ge $UNANSWERED ]; then fail "cannot delete $name: $trouble"; fi
    sleep "$POLL"
  done
}

# --- Its workers ---------------------------------------------------------------------------------------

# ssh options: a dead connection must end, and a new TPU of the old name must not be taken for an attack.
# shellcheck disable=SC2086 # AG_JAX_TPU_SSH is several words
on_node() { # on_node NODE NUMBER|all COMMAND: run COMMAND on a worker of a node or on all at once
  tpus tpu-vm ssh "$1" --worker="$2" --command="$3" --strict-host-key-checking=no \
    --ssh-flag=-oConnectTimeout=20 --ssh-flag=-oServerAliveInterval=15 --ssh-flag=-oServerAliveCountMax=4 \
    ${AG_JAX_TPU_SSH:-}
}

# on_worker NUMBER|all COMMAND: run COMMAND, a line of shell, on a worker or on all. Of several slices, workers are counted
# from those of the first slice on, and each slice has as many.
on_worker() {
  local each node failed=0
  if [ "$1" = all ]; then
    for node in $(nodes); do on_node "$node" all "$2" || failed=$?; done
    return $failed
  fi
  each=$((${workers:-$slices} / slices))
  on_node "$(nodes | sed -n "$(($1 / each + 1))p")" $(($1 % each)) "$2"
}

# shellcheck disable=SC2086
to_workers() { # to_workers FILE: copy it into the home directory of each
  local node failed=0
  for node in $(nodes); do
    tpus tpu-vm scp "$1" "$node:" --worker=all --strict-host-key-checking=no --scp-flag=-oConnectTimeout=20 \
      ${AG_JAX_TPU_SSH:-} || failed=$?
  done
  return $failed
}

# on_workers_ag_jax NUMBER|all WORD...: call launch/tpu_worker.sh there.
on_workers_ag_jax() {
  local who=$1
  shift
  on_worker "$who" "bash ag_jax/launch/tpu_worker.sh $(quoted "$@")"
}
