# shellcheck shell=bash
# Installation for local.sh, test.sh and docs.sh. Source this file, then call `set_up [test|parity|browser|docs]`, which
#
#   1. finds a Python that ag_jax supports,
#   2. detects which jax this machine needs: for NVIDIA GPUs, TPUs or the CPU,
#   3. creates .venv with the pinned packages, unless that is already done,
#   4. puts .venv first on PATH.
#
# With dry_run=yes, the commands that would change something are printed instead.
#
# The first call leaves a stamp in .venv. Later calls find it and install nothing.
# Environment variables, all optional:
#
#   PYTHON              Python to use, as a name or a path
#   AG_JAX_VENV         folder of the environment (default .venv)
#   AG_JAX_ACCELERATOR  cpu, cuda12, cuda13 or tpu, instead of detecting it
#
# Written for bash 3.2, which macOS still ships.

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Packages are installed without compiled modules (see pip_install). With this variable, which many containers set, Python would
# write none either, and every process would compile some 1,500 modules again.
unset PYTHONDONTWRITEBYTECODE

dry_run=no # yes: print the commands that change something, and run none of them

say() { printf 'ag_jax: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

# quoted WORD...: the words as one line from which a shell reads the same words.
quoted() {
  local line
  line=$(printf '%q ' "$@")
  printf '%s\n' "${line% }"
}

# run COMMAND...: run it, or with --dry_run print it.
run() { if [ "$dry_run" = yes ]; then quoted "$@"; else "$@"; fi; }

# --- 1. Python ---------------------------------------------------------------------------------------

# describe_python PYTHON: print "VERSION BASE VENV", such as "3.12.4 /usr yes"; fails where PYTHON does not
# run. BASE is the installation behind a virtual environment; VENV says whether it can make one.
describe_python() {
  "$1" -c '
import importlib.util, sys
can_make_venv = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
print("%d.%d.%d" % sys.version_info[:3], sys.base_prefix, "yes" if can_make_venv else "no")
' 2>/dev/null </dev/null
}

supported() {
  case $1 in
    3.11.* | 3.12.* | 3.13.*) return 0 ;;
    *) return 1 ;;
  esac
}

# Set `python` and `python_is` (its description) to the first candidate that runs, is supported and can make
# a virtual environment. A name on PATH proves nothing: version managers leave names there that do not run.
find_python() {
  local candidate description version seen="" without_venv=""
  if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
  else
    set -- python3 python3.13 python3.12 python3.11 python
  fi
  for candidate in "$@"; do
    description=$(describe_python "$candidate") || continue
    version=${description%% *}
    if ! supported "$version"; then
      seen="$seen $candidate is $version;"
    elif [ "${description##* }" = no ]; then
      without_venv=${without_venv:-$version}
    else
      python=$candidate python_is=${description% *}
      return 0
    fi
  done

  if [ -n "$without_venv" ]; then
    fail "Python $without_venv is here, but without the module that makes virtual environments." \
      "On Debian and Ubuntu: apt install python3-venv (or python${without_venv%.*}-venv)."
  fi
  if [ -n "${PYTHON:-}" ]; then
    fail "PYTHON=$PYTHON cannot be used:${seen:- it does not run;} Python 3.11, 3.12 or 3.13 is needed."
  fi
  fail "needs Python 3.11, 3.12 or 3.13, and found none:${seen:- no Python runs here;}" \
    "install one (python.org, your package manager, or pyenv), or name one: PYTHON=/path/to/python3 bash $0"
}

# --- 2. Accelerator ----------------------------------------------------------------------------------

# Set `accelerator` (cpu, cuda12, cuda13, tpu) and `because`, a few words for the reader.
choose_accelerator() {
  if [ -n "${AG_JAX_ACCELERATOR:-}" ]; then
    case $AG_JAX_ACCELERATOR in
      cpu | cuda12 | cuda13 | tpu) accelerator=$AG_JAX_ACCELERATOR because="AG_JAX_ACCELERATOR is set" ;;
      *) fail "AG_JAX_ACCELERATOR=$AG_JAX_ACCELERATOR: expected cpu, cuda12, cuda13 or tpu" ;;
    esac
  elif [ "$(uname -s)" != Linux ]; then
    accelerator=cpu because="jax has GPU and TPU builds for Linux only"
  elif tpu_is_here; then
    accelerator=tpu because="this is a TPU VM"
  else
    choose_cuda
  fi
}

# A TPU VM has the chips as device files, and either TPU_ variables in its environment or a PCI device from
# Google (vendor 1ae0) that is neither a disk (class 01) nor a network card (class 02). The device files alone
# would not do: /dev/vfio also serves other hardware. AG_JAX_ROOT lets the tests show another machine's files.
tpu_is_here() {
  local root=${AG_JAX_ROOT:-} device class
  [ -n "$(compgen -G "$root/dev/accel[0-9]*")" ] || [ -n "$(compgen -G "$root/dev/vfio/[0-9]*")" ] || return 1
  if [ -n "$(compgen -e TPU_)" ]; then return 0; fi
  for device in "$root"/sys/bus/pci/devices/*; do
    [ "$(cat "$device/vendor" 2>/dev/null)" = 0x1ae0 ] || continue
    class=$(cat "$device/class" 2>/dev/null)
    case $class in
      0x01* | 0x02*) ;;
      *) return 0 ;;
    esac
  done
  return 1
}

# jax has builds for CUDA 12 and 13 that bring CUDA along; only the driver must be new enough. Its CUDA 13
# build leaves out GPUs older than compute capability 7.5 (V100 and before).
choose_cuda() {
  local report cuda capability
  accelerator=cpu
  if ! nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null; then
    because="no NVIDIA GPU and no TPU found"
    return
  fi
  report=$(nvidia-smi 2>/dev/null) || true
  cuda=$(sed -nE 's/.*CUDA[A-Za-z ]*Version: *([0-9]+).*/\1/p' <<<"$report" | head -n 1)
  report=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) || true
  capability=$(tr -d '. ' <<<"$report" | sort -n | head -n 1)
  case $capability in
    '' | *[!0-9]*) capability=999 ;; # an old nvidia-smi does not say
  esac
  if [ -z "$cuda" ]; then
    because="there is an NVIDIA GPU, but nvidia-smi names no CUDA version; set AG_JAX_ACCELERATOR to choose"
  elif [ "$cuda" -lt 12 ]; then
    because="the NVIDIA driver knows CUDA $cuda only; update it for GPU support"
  elif [ "$cuda" -ge 13 ] && [ "$capability" -ge 75 ]; then
    accelerator=cuda13 because="NVIDIA GPU, driver for CUDA $cuda"
  else
    accelerator=cuda12 because="NVIDIA GPU, driver for CUDA $cuda"
    if [ "$cuda" -ge 13 ]; then because="$because, but the GPU is older than CUDA 13 supports"; fi
  fi
}

# --- 3. The environment ------------------------------------------------------------------------------
# Two kinds of file in .venv keep the set-up honest:
#   .ag_jax-installing  there while packages are being installed; line 1 is the process id. One that outlives
#                       its process tells of a killed set-up, after which .venv is made anew.
#   .ag_jax-EXTRA       the stamp, written last: what the environment was made for and from.

# What the environment must be: line 1 for the whole of it, line 2 for the packages of EXTRA.
stamp_for() {
  echo "Python $python_is, jax for $accelerator, in $venv"
  echo "$(cat pyproject.toml "$(requirements_of "$1")" | cksum) $REPOSITORY"
}

requirements_of() {
  case $1 in
    base) echo requirements.txt ;;
    docs) echo requirements-docs.txt ;;       # holds all of requirements.txt too
    browser) echo requirements-browser.txt ;; # holds all of requirements-test.txt too, but for packages of PyPy
    *) echo requirements-test.txt ;;          # holds all of requirements.txt too
  esac
}

# remove_venv REASON: but nothing that the set-up, or Python's venv, did not make.
remove_venv() {
  if [ -e "$venv/pyvenv.cfg" ] || [ -e "$installing" ]; then
    say "$1; making $venv anew"
    run rm -rf "$venv"
    venv_is=""
  elif [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
    fail "$venv is not a virtual environment; move it away, or set AG_JAX_VENV to another folder"
  fi
}

# A killed process keeps its number, as a zombie, until its parent looks; in a container that may be never.
is_running() { kill -0 "$1" 2>/dev/null && ! grep '^State:.*Z' "/proc/$1/status" >/dev/null 2>&1; }

# Let another set-up of the same environment end, and clear up after one that was killed.
wait_for_other_setup() {
  local owner
  [ -e "$installing" ] && [ "$dry_run" = no ] || return 0
  owner=$(head -n 1 "$installing")
  if [ "$owner" != $$ ] && is_running "${owner:-none}"; then
    say "process $owner is setting up $venv; waiting for it (if it is not, delete $installing)"
    while [ -e "$installing" ] && is_running "$owner"; do sleep 1; done
  fi
  if [ -e "$installing" ]; then remove_venv "an earlier set-up was cut short"; fi
}

# pip, with a dot for each package instead of three lines, and its own words only where it fails.
# --no-compile: Python compiles each module when it is first imported, in place of all of them now.
pip_install() {
  local line log=$venv/.ag_jax-pip.log
  if [ "$dry_run" = yes ]; then
    quoted "$venv/bin/python" -m pip install "$@"
    return
  fi
  : >"$log"
  PIP_USER=0 "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile "$@" 2>&1 </dev/null |
    while IFS= read -r line; do
      printf '%s\n' "$line" >>"$log"
      case $line in
        Collecting*) printf '.' >&2 ;;
        Installing\ collected*)
          echo unpacking >>"$installing"
          printf ' unpacking\n' >&2
          ;;
      esac
    done
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then
    printf '\n' >&2
    tail -n 20 "$log" >&2
    return 1
  fi
}

install() {
  local extra=$1 requirements packages duration="about a minute" torch_for_cpus=https://download.pytorch.org/whl/cpu
  requirements=$(requirements_of "$extra")
  packages=$(grep -cE '^[A-Za-z].*==' "$requirements")
  case $accelerator in
    cuda*) duration="several minutes: CUDA is about 3 GB" ;;
    tpu) duration="a few minutes" ;;
  esac

  if [ "$dry_run" = no ]; then
    mkdir -p "$venv" || fail "cannot make $venv"
    if ! (set -o noclobber && echo $$ >"$installing") 2>/dev/null; then
      fail "cannot write to $venv, or another set-up has just begun there"
    fi
  fi
  if [ -z "$venv_is" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making $venv"
    run "$python" -m venv "$venv" || fail "cannot make the virtual environment $venv (see above)"
  fi
  say "installing about $packages packages ($duration)"

  # "jax[cuda13]" takes its version from the pinned jax, so every build is of the same release.
  set -- -r "$requirements"
  if [ "$accelerator" != cpu ]; then set -- "$@" "jax[$accelerator]"; fi
  # A TPU's runs live in gs:// buckets, which Python reads and writes with gcsfs.
  if [ "$accelerator" = tpu ]; then set -- "$@" gcsfs; fi
  # The comparison runs on CPUs; PyTorch's own index has a build for them, a tenth of the size.
  if ! pip_install "$@" || ! pip_install --no-deps -e . ||
    { [ "$extra" = parity ] && ! pip_install --extra-index-url "$torch_for_cpus" -c "$requirements" -e '.[parity]'; }; then
    # A failed download leaves the environment as it was; a failed unpacking is cleared up by the next set-up.
    if ! grep unpacking "$installing" >/dev/null; then rm -f "$installing"; fi
    fail "pip failed (its message is above). When that is mended, run the same command again."
  fi

  if [ "$dry_run" = yes ]; then return; fi
  # test and docs contain base; parity and browser contain test.
  stamp_for base >"$venv/.ag_jax-base"
  case $extra in
    parity | browser) stamp_for test >"$venv/.ag_jax-test" ;;
  esac
  if [ "$extra" != base ]; then stamp_for "$extra" >"$venv/.ag_jax-$extra"; fi
  rm -f "$installing"
}

# set_up [base|test|parity|browser|docs]: leaves the shell in the repository, with the environment first on PATH.
set_up() {
  local extra=${1:-base} state="is up to date"
  local venv installing venv_is="" python="" python_is="" accelerator="" because="" made_for
  cd "$REPOSITORY" || fail "cannot enter $REPOSITORY"
  if [ "$dry_run" = yes ]; then quoted cd "$REPOSITORY"; fi
  venv=${AG_JAX_VENV:-.venv}
  case $venv in
    /*) ;;
    *) venv=$REPOSITORY/$venv ;;
  esac
  installing=$venv/.ag_jax-installing
  wait_for_other_setup

  # An environment that is there decides its Python, unless PYTHON asks for one.
  if venv_is=$(describe_python "$venv/bin/python"); then venv_is=${venv_is% *}; fi
  if [ -z "${PYTHON:-}" ] && supported "${venv_is%% *}"; then
    python=$venv/bin/python python_is=$venv_is
  else
    find_python
    if [ "$venv_is" != "$python_is" ]; then remove_venv "$venv has Python ${venv_is:-that does not run}"; fi
  fi
  choose_accelerator

  if [ "$(cat "$venv/.ag_jax-$extra" 2>/dev/null)" != "$(stamp_for "$extra")" ]; then
    made_for=$(head -n 1 "$venv/.ag_jax-base" 2>/dev/null) || made_for=""
    if [ -n "$made_for" ] && [ "$made_for" != "$(stamp_for base | head -n 1)" ]; then
      # Left-over CUDA packages would go on being used, and a moved environment has wrong paths inside.
      find_python
      remove_venv "the environment there was made for $made_for"
    fi
    install "$extra"
    state="is ready"
    if [ "$dry_run" = yes ]; then state="is not ready yet; this was a dry run"; fi
  fi
  say "Python ${python_is%% *}, jax for $accelerator ($because); ${venv#"$REPOSITORY"/} $state"

  export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
  unset PYTHONHOME
  hash -r
}
