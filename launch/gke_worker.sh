#!/usr/bin/env bash
# Run `ag-jax WORD...` in a container of a cluster, so that an interrupted run does not count as a finished one.
#
#   bash launch/gke_worker.sh train --config=... --workdir=gs://BUCKET/RUN
#
# A container is told by SIGTERM that it will end soon. ag-jax then saves a checkpoint and exits with 0, which would mark
# the job as done. This script passes the signal on, waits for the end, and exits with 75 (EX_TEMPFAIL), which says: start
# it again. In all other cases the exit status is that of ag-jax. The manifests of launch/gke.sh call it.
set -uo pipefail

AGAIN=75 # as in ag_jax/distributed/hosts.py
terminated=no child=""

pass_on() {
  terminated=yes
  if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null; fi
}

trap pass_on TERM INT
ag-jax "$@" &
child=$!
if [ $terminated = yes ]; then pass_on; fi # the signal came before there was a process to pass it on to

# `wait` returns early when a signal comes.
wait "$child"
status=$?
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  status=$?
done

if [ $terminated = yes ]; then
  printf 'ag_jax: interrupted by a signal (ag-jax ended with %s); exit status %s, so that it is started again\n' $status $AGAIN >&2
  exit $AGAIN
fi
exit $status
