#!/usr/bin/env bash
# Install ag_jax with its test packages and run pytest:
#
#   bash launch/test.sh                        the tests, several in parallel
#   bash launch/test.sh --all                  also the exhaustive tests, those of buckets, launch scripts and several hosts,
#                                              and compilations for TPUs and NVIDIA GPUs, which need no device, but separate
#                                              environments
#   bash launch/test.sh tests/launch -x        any other arguments are passed to pytest
#
# Tests run on the CPU unless JAX_PLATFORMS is set. Environment variables are those of launch/local.sh. tests/parity needs
# PyTorch and tests/browser a browser: .ci/run installs them before it runs these tests.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# run_all ARGUMENTS: pytest with one worker more than there are cores, because many tests wait for other processes. At most
# 4 workers, because each needs up to 4 GB. All tests of a file go to the same worker, which compiles only once what they share.
# Files that take long come first (tests/conftest.py), so that the workers end at about the same time.
run_all() {
  local workers
  workers=$(($(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1))
  if [ "$workers" -gt 4 ]; then workers=4; fi
  python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "$@"
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
  "") set_up test && run_all tests ;;
  --all)
    if [ $# -gt 1 ]; then fail "--all takes no further arguments, got: ${*:2}"; fi
    (set_up test && run_all -m "" tests && run_all -m "" tests/buckets tests/launch tests/multihost)
    run_with tpu tests/planning tests/attention/test_tpu.py
    run_with cuda12 tests/attention/test_gpu.py
    ;;
  *) set_up test && exec python -m pytest "$@" ;;
esac
