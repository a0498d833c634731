#!/usr/bin/env bash
# Set ag_jax up with its test packages and run pytest:
#
#   bash launch/test.sh                        the tests, several at a time
#   bash launch/test.sh --all                  also the exhaustive ones, and compilations for TPUs and NVIDIA GPUs, which
#                                              need no device, but environments of their own
#   bash launch/test.sh tests/launch -x        any other arguments go to pytest as they are
#
# Tests run on the CPU unless JAX_PLATFORMS says otherwise. Settings as for launch/local.sh. tests/parity needs PyTorch: .ci/run
# installs it and runs them.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# run_all ARGUMENTS: all tests, with one worker more than there are cores, as many tests wait for other processes; at most 4 workers,
# each of which needs up to 4 GB. All tests of a file go to one worker, which compiles once what they share; files that take long
# come first (tests/conftest.py), so that the workers end together.
run_all() {
  local workers
  workers=$(($(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1))
  if [ "$workers" -gt 4 ]; then workers=4; fi
  python -m pytest tests -n "$workers" --dist loadfile --no-loadscope-reorder --ignore=tests/parity "$@"
}

# run_with ACCELERATOR TESTS...: tests that compile for an accelerator, in an environment that has its compiler.
run_with() (
  export AG_JAX_ACCELERATOR=$1 AG_JAX_VENV=${AG_JAX_VENV:-.venv}-$1
  shift
  set_up test
  python -m pytest -m "" "$@"
)

export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
case ${1:-} in
  "")
    set_up test
    run_all
    ;;
  --all)
    if [ $# -gt 1 ]; then fail "--all takes no further arguments, got: ${*:2}"; fi
    (
      set_up test
      run_all -m ""
    )
    run_with tpu tests/planning tests/attention/test_tpu.py
    run_with cuda12 tests/attention/test_gpu.py
    ;;
  *)
    set_up test
    exec python -m pytest "$@"
    ;;
esac
