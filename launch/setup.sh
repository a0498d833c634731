# shellcheck shell=bash
# Installation of ag_jax. Source this file, then call `set_up [base|test|parity|browser|docs]`. It enters the repository, makes
# the environment .venv with the pinned packages, unless it is up to date, and puts it first on PATH. uv installs them if it
# is on PATH, and downloads a Python if there is none; otherwise pip of Python 3.11, 3.12 or 3.13. Variables, all optional:
#
#   PYTHON              Python to use, as a name or a path
#   AG_JAX_VENV         folder of the environment (default .venv)
#   AG_JAX_ACCELERATOR  cpu, cuda12, cuda13 or tpu, instead of detecting it
#
# An environment keeps its Python and its jax until PYTHON or AG_JAX_ACCELERATOR asks for another; then it is made anew.

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Packages are installed without compiled modules. With this variable, which many containers set, Python would write none
# either, and every process would compile some 1,500 modules again.
unset PYTHONDONTWRITEBYTECODE

say() { printf 'ag_jax: %s\n' "$*" >&2; }

fail() { say "$*"; exit 1; }

# The next two run the program, because version managers leave names on PATH that do not run.
has_uv() { uv --version >/dev/null 2>&1; }

# python_version PYTHON: print its version, such as 3.12.4. Fails if it does not run, or ag_jax does not support it.
python_version() {
  "$1" -c 'import sys; v = sys.version_info; print("%d.%d.%d" % v[:3]); sys.exit(not (3, 11) <= v < (3, 14))' 2>/dev/null
}

# detect_accelerator ROOT: print the build of jax for this machine. ROOT is empty; tests have another machine's files there.
detect_accelerator() {
  local cuda capability
  # jax's builds bring CUDA along; only the driver must be new enough. That for CUDA 13 leaves out GPUs below compute
  # capability 7.5 (V100 and before). An old nvidia-smi does not print the capability.
  cuda=$(nvidia-smi 2>/dev/null | sed -nE 's/.*CUDA[A-Za-z ]*Version: *([0-9]+).*/\1/p' | head -n 1) || true
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -dc '0-9\n' | sort -n | head -n 1) || true
  if [ "${cuda:-0}" -ge 13 ] && [ "${capability:-75}" -ge 75 ]; then
    echo cuda13
  elif [ "${cuda:-0}" -ge 12 ]; then
    echo cuda12
  # The device files of TPU chips. On machines that are not Google's, those of vfio belong to other hardware.
  elif [ -n "$(compgen -G "$1/dev/accel[0-9]*")$(compgen -G "$1/dev/vfio/[0-9]*")" ] &&
    grep '^Google' "$1/sys/class/dmi/id/product_name" >/dev/null 2>&1; then
    echo tpu
  else
    echo cpu
  fi
}

# The functions below use the variables of set_up.
make_environment() {
  local python
  # --seed: with pip, for `pip install 'ag_jax[hf]'` in the activated environment.
  if has_uv && uv venv --quiet --seed --allow-existing --python "${PYTHON:->=3.11,<3.14}" "$venv"; then return; fi
  for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if python_version "$python" >/dev/null; then
      "$python" -m venv "$venv"
      return
    fi
  done
  fail "expected Python 3.11, 3.12 or 3.13, and found none on PATH: install it or uv (docs.astral.sh/uv), or set PYTHON=FILE"
}

# --no-compile: Python compiles each module when it is first imported, in place of all of them now.
pip_install() { PIP_USER=0 "$venv/bin/python" -m pip install -q --no-input --no-compile --disable-pip-version-check "$@"; }

# Install the lock, ag_jax, and for an accelerator jax's build of the version in the lock.
install_packages() {
  set -- -r "$lock" -e ".[$accelerator]"
  # pip also where uv fails, because uv does not read pip's configuration, such as a cluster's own index.
  { has_uv && uv pip install -q --python "$venv/bin/python" "$@"; } || pip_install "$@" || return 1
  # The comparison runs on CPUs: this index has a build of PyTorch for them, a tenth of the size. pip goes on without an index
  # that cannot be reached, and uv does not.
  if [ "$extra" = parity ]; then
    pip_install -c "$lock" -e ".[parity]" --extra-index-url https://download.pytorch.org/whl/cpu
  fi
}

# Whether the environment has the right Python, jax and path, and the last installation into it was completed.
can_stay() {
  version=$(python_version "$venv/bin/python") && [ "$version" = "${wanted:-$version}" ] &&
    case $(cat "$venv/.ag_jax-base" 2>/dev/null) in "" | "$accelerator $venv "*) ;; *) false ;; esac
}

is_up_to_date() { can_stay && [ "$(cat "$venv/.ag_jax-$extra" 2>/dev/null)" = "$state" ]; }

bring_up_to_date() {
  say "installing $lock into $venv (a minute or two; for CUDA, which is about 3 GB, several)"
  flock 9 2>/dev/null || perl -e 'open F, ">&=9" and flock F, 2' # one installation at a time; macOS has no flock
  if is_up_to_date; then return; fi
  if ! can_stay && [ -e "$venv/pyvenv.cfg" ]; then
    say "$venv has another Python or jax, was moved, or is not complete; making it anew"
    rm -rf "$venv"
  fi
  if [ "$(cat "$venv/.ag_jax-base" 2>/dev/null)" != "$state" ]; then rm -f "$venv"/.ag_jax-*; fi
  # After an installation that is cut short, pip takes packages for installed of which files are missing.
  { mkdir -p "$venv" && echo "$accelerator: not completed" >"$venv/.ag_jax-base"; } || exit 1
  if [ ! -e "$venv/bin/python" ]; then make_environment || fail "$venv could not be made (see above)"; fi
  install_packages || fail "the installation failed (see above); the same command tries it again"
  echo "$state" | tee "$venv/.ag_jax-$extra" >"$venv/.ag_jax-base"
}

set_up() {
  local extra=${1:-base} lock version wanted="" accelerator venv state
  case $extra in base) lock=requirements.txt ;; parity) lock=requirements-test.txt ;; *) lock=requirements-$extra.txt ;; esac
  cd "$REPOSITORY" || exit 1
  venv=${AG_JAX_VENV:-.venv}
  if [ "${venv#/}" = "$venv" ]; then venv=$REPOSITORY/$venv; fi
  if [ -n "${PYTHON:-}" ] && ! wanted=$(python_version "$PYTHON"); then
    fail "PYTHON=$PYTHON: expected Python 3.11, 3.12 or 3.13, got ${wanted:-a command that does not run}"
  fi
  accelerator=${AG_JAX_ACCELERATOR:-$(sed 's/[ :].*//' "$venv/.ag_jax-base" 2>/dev/null || true)}
  accelerator=${accelerator:-$(detect_accelerator "")}
  [[ $accelerator =~ ^(cpu|cuda12|cuda13|tpu)$ ]] || fail "AG_JAX_ACCELERATOR: cpu, cuda12, cuda13 or tpu, not $accelerator"
  # What .ag_jax-EXTRA holds once the packages of EXTRA are installed.
  state="$accelerator $venv $REPOSITORY $(cat pyproject.toml requirements*.txt | cksum)"
  is_up_to_date || bring_up_to_date 9>.venv.lock || exit 1
  say "$("$venv/bin/python" --version), jax for $accelerator; ${venv#"$REPOSITORY"/} is ready"
  unset PYTHONHOME && export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
}
