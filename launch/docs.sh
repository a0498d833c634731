#!/usr/bin/env bash
# Install ag_jax with the packages of the documentation site and build it in build/site:
#
#   bash launch/docs.sh             then open build/site/index.html
#
# Further arguments are passed to sphinx-build. Notebooks are executed, in a small setting, which takes minutes; with
# -D nb_execution_mode=off they are not. A warning is an error. Files of the repository to which pages link are copied into the
# site, or with AG_JAX_REPOSITORY=ADDRESS linked there, such as https://HOST/OWNER/ag_jax/blob/main. Other environment
# variables are those of launch/local.sh.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
set_up docs
if ! python -m sphinx -n -W --keep-going -b html -d build/doctrees "$@" docs build/site; then
  fail "the site is not built (see above). If a cell of a notebook timed out: -D nb_execution_timeout=SECONDS gives cells" \
    "more time, and -D nb_execution_mode=off builds the site without their outputs"
fi
say "open build/site/index.html"
