#!/usr/bin/env bash
# Delete a TPU, so that it costs nothing any more. See usage below.
set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: bash launch/tpu_delete.sh NAME [OPTIONS]

Deletes the TPU with its queued resource, its disks and what runs on it, after asking. A --workdir in a
gs:// bucket stays. Also for one that is SUSPENDED or FAILED, which still takes quota.

  --yes      do not ask
  --zone=ZONE, --project=PROJECT   of a TPU that tpu_create.sh did not make here
  --dry_run  print the commands, run none
END_OF_USAGE
}

main() {
  local yes=no reply=""
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        return
        ;;
      --yes) yes=yes ;;
      --zone=*) zone=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --dry_run) dry_run=yes ;;
      -*) refuse_option "$1" ;;
      *) take_name "$1" ;;
    esac
    shift
  done
  recall
  settle_place
  if [ "$dry_run" = yes ]; then
    delete
    return
  fi

  first_look
  case $state in
    NONE) say "there is no TPU $name in $zone of project $project" ;;
    *)
      if [ $yes = no ]; then
        printf 'Delete %s (%s, %s) in %s of project %s? [y/N] ' "$name" "${accelerator:-TPU}" "$state" "$zone" "$project" >&2
        read -r reply || reply=""
        case $reply in
          y | Y | yes) ;;
          *) fail "not deleted" ;;
        esac
      fi
      ;;
  esac
  if [ ${#creation[@]} -gt 0 ]; then rm -f "$(record)/create"; fi # first, so that a tpu_run.sh does not make it again
  if [ "$state" != NONE ]; then
    delete
    say "$name is deleted"
  fi
}

main "$@"
