#!/usr/bin/env bash
# Request a TPU from Google Cloud and wait until it is active. See usage below.
set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: bash launch/tpu_create.sh NAME --accelerator=TYPE [OPTIONS] [-- GCLOUD_FLAGS]

Creates a queued resource with one TPU, both called NAME, or with several slices, called NAME-0 and so on, and waits until it is ACTIVE. If the command is interrupted,
the same command continues to wait. The request is saved in runs/tpu/NAME, so the other tpu_*.sh scripts need only
the name.

  bash launch/tpu_create.sh roberta --accelerator=v5litepod-8 --zone=us-west4-a --spot
  bash launch/tpu_create.sh roberta --accelerator=v5litepod-256 --slices=2 --zone=us-west4-a
  bash launch/tpu_create.sh roberta --accelerator=v4-8 --zone=us-central2-b -- --network=mine --labels=who=me

  --accelerator=TYPE         v2-N, v3-N, v4-N, v5litepod-N (v5e), v5p-N or v6e-N
  --slices=2                 as many TPUs of this type, connected by the network of the data center (default: 1)
  --zone=ZONE                default: gcloud config get-value compute/zone
  --project=PROJECT          default: gcloud config get-value core/project
  --spot                     cheaper, but may be preempted at any time (default: on demand)
  --valid_until=6h           give up if there is no capacity within this time (default: wait without limit)
  --runtime_version=VERSION  image of the TPU VM, instead of the usual one for the accelerator
  --dry_run                  print the commands without running them
  GCLOUD_FLAGS               further flags of `gcloud compute tpus queued-resources create`

An ACTIVE TPU costs money until it is deleted: bash launch/tpu_delete.sh NAME
END_OF_USAGE
}

main() {
  local wanted="" version="" is_spot=no valid_until="" before after
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        return
        ;;
      --accelerator=*) wanted=${1#*=} ;;
      --slices=*) whole_number --slices "${1#*=}" && slices=${1#*=} ;;
      --zone=*) zone=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --runtime_version=*) version=${1#*=} ;;
      --valid_until=*) valid_until=${1#*=} ;;
      --spot) is_spot=yes ;;
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
  if [ -z "$wanted" ]; then fail "which accelerator? Give --accelerator=TYPE, such as --accelerator=v5litepod-8"; fi
  if [ "$slices" -eq 0 ]; then fail "--slices must be at least 1, got 0"; fi
  if [ -z "$version" ]; then version=$(runtime_version "$wanted"); fi
  settle_place

  before=$(cat "$(record)/create" 2>/dev/null) || before=""
  accelerator=$wanted
  creation=(compute tpus queued-resources create "$name")
  if [ "$slices" -eq 1 ]; then
    creation+=(--node-id="$name")
  else
    creation+=(--node-count="$slices" --node-prefix="$name")
  fi
  creation+=(${place[@]+"${place[@]}"} --accelerator-type="$wanted" --runtime-version="$version")
  if [ $is_spot = yes ]; then creation+=(--spot); fi
  if [ -n "$valid_until" ]; then creation+=(--valid-until-duration="$valid_until"); fi
  creation+=("$@" --quiet)
  after=$(printf '%s\n' "${creation[@]}")

  if [ "$dry_run" = yes ]; then
    create
    note "then, until it says ACTIVE:"
    tpus queued-resources describe "$name" --format='value(state.state)'
    return
  fi

  first_look
  if [ "$state" = NONE ]; then
    say "asking for $wanted$([ "$slices" -eq 1 ] || echo " x $slices") in $zone ($version)"
    remember # first, because a request that is interrupted may have reached Google Cloud
    if ! create; then
      look
      if [ "$state" = NONE ]; then
        rm -f "$(record)/create"
        exit 1
      fi
      say "but $name was asked for (state: $state), so this script waits for it"
    fi
  elif [ "$before" != "$after" ]; then
    fail "there is a TPU $name already ($state), made with other settings; delete it with bash launch/tpu_delete.sh $name," \
      "or choose another name"
  fi
  wait_until_active
  if [ "$state" != ACTIVE ]; then
    advise
    exit 1
  fi
  say "$name is ACTIVE: $accelerator$([ "$slices" -eq 1 ] || echo " x $slices") with $workers worker(s). It costs money until bash launch/tpu_delete.sh $name"
}

main "$@"
