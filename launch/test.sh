#!/usr/bin/env bash
# Set ag_jax up with its test packages and run pytest:
#
#   bash launch/test.sh                        all tests but tests/parity, several at a time
#   bash launch/test.sh -m "not slow"          any arguments go to pytest as they are
#   bash launch/test.sh tests/launch -x
#
# Tests run on the CPU unless JAX_PLATFORMS says otherwise. Settings as for launch/local.sh.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

set_up test
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
if [ $# -eq 0 ]; then
  # One worker a core, at most 4 (each needs about 2 GB). All tests of a file go to one worker, which then
  # compiles once what they share. tests/parity needs PyTorch: .ci/run installs it and runs them.
  workers=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
  if [ "$workers" -gt 4 ]; then workers=4; fi
  set -- tests -n "$workers" --dist loadfile --ignore=tests/parity
fi
exec python -m pytest "$@"
