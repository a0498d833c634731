#!/usr/bin/env bash
# Install ag_jax with the packages of the documentation site and build it in build/site:
#
#   bash launch/docs.sh             then open build/site/index.html
#
# Further arguments are passed to sphinx-build. A warning is an error. Notebooks are shown with the outputs that are stored in
# them (notebooks/execute.py). Files of the repository to which pages link are copied into the site, or with
# AG_JAX_REPOSITORY=ADDRESS linked there, such as https://HOST/OWNER/ag_jax/blob/main. Other environment variables are those of
# launch/local.sh.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
set_up docs
if ! python -m sphinx -n -W --keep-going -b html -d build/doctrees "$@" docs build/site; then
  fail "the site is not built (see above)"
fi
say "open build/site/index.html"
