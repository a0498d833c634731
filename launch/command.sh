# shellcheck shell=bash
# Checks of a command `ag-jax VERB FLAGS` before it is started elsewhere, for tpu_run.sh and slurm.sh. Source this
# file after setup.sh; it reads the array `command` (the words after ag-jax) and the folder $scratch.
# shellcheck disable=SC2154 # both are the other script's

# flag_of NAME: the value of the last flag --NAME=VALUE of the command; empty without it.
flag_of() {
  local word found=""
  for word in "${command[@]}"; do
    case $word in
      --"$1"=*) found=${word#*=} ;;
      --"$1") fail "write --$1=VALUE, in one word" ;;
    esac
  done
  printf '%s\n' "$found"
}

# Does the verb run on several hosts, and take the flag --hosts?
takes_hosts() {
  case ${command[0]} in
    train | finetune | compare | search | evaluate) ;;
    *) return 1 ;;
  esac
}

# check_verb_of_hosts WHY: fail unless the verb runs on several hosts.
check_verb_of_hosts() {
  takes_hosts || fail "ag-jax ${command[0]} runs on one machine, and $1: run it where you are, on the same --workdir"
}

# check_verb_of_array N: fail unless N jobs can share the work of the verb.
check_verb_of_array() {
  case ${command[0]} in
    finetune | compare | search | prepare) ;;
    *) fail "ag-jax ${command[0]} does one thing, which jobs cannot share: leave --array out" ;;
  esac
}

# places_hosts WORD...: do the words say which hosts there are?
places_hosts() {
  local word
  for word in "$@"; do
    case $word in
      --hosts | --hosts=*) return 0 ;;
    esac
  done
  return 1
}

# check_command WHERE [FLAG]...: has the ag-jax of this machine, if there is one, reject a wrong verb, flag or setting while
# that costs nothing yet. FLAGs are added to the command. WHERE says where it will run, such as "on the TPU".
check_command() {
  local status=0 config why="" environment=${AG_JAX_VENV:-.venv} where=$1
  shift
  case ${command[0]} in
    export | import | inspect | translate) # without the flag --print_config
      say "warning: the command is not checked before it runs $where: \`ag-jax ${command[0]}\` can only be run"
      return
      ;;
  esac
  case $environment in
    /*) ;;
    *) environment=$REPOSITORY/$environment ;;
  esac
  if [ -x "$environment/bin/ag-jax" ]; then
    (cd "$REPOSITORY" && JAX_PLATFORMS=cpu "$environment/bin/ag-jax" "${command[@]}" "$@" --print_config) >/dev/null 2>"$scratch/check" || status=$?
    config=$(printf '%s\n' "${command[@]}" | grep -m 1 -e '^--config$' -e '^--config=') || true
    case $status-${command[0]}-$config in
      # Without --config it reads the run's own, which may be in a bucket: only a wrong flag (2) shows here.
      0-* | 1-evaluate-) return ;;
    esac
    tail -n 15 "$scratch/check" >&2
    case $config in
      *gs://*) why="its config, which reads from a bucket, could not be loaded here (see above)" ;;
      *) if ! grep '^ag-jax' "$scratch/check" >/dev/null; then why="ag-jax does not run in $environment (see above)"; fi ;;
    esac
    if [ -z "$why" ]; then fail "ag-jax rejects this command (see above); nothing was started"; fi
  else
    why="there is no environment in $environment; \`bash launch/local.sh --help\` says how to make one"
  fi
  say "warning: the command is not checked before it runs $where: $why"
}
