#!/usr/bin/env bash
# Delete a TPU, so that it no longer costs anything. See usage below.
set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: bash launch/tpu_delete.sh NAME [OPTIONS]

Asks for confirmation, then ends what runs on the TPU and deletes the TPU, its queued resource and its disks. A
--workdir in a gs:// bucket stays. Use it for a SUSPENDED or FAILED TPU, too, because that still takes quota.

  --yes                            do not ask for confirmation
  --zone=ZONE, --project=PROJECT   place of a TPU that was not created by tpu_create.sh in this checkout
  --dry_run                        print the commands without running them
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
