#!/usr/bin/env bash
# Run ag-jax on TPUs or GPUs of a Kubernetes cluster. See usage below.
set -euo pipefail
# shellcheck source=launch/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
# shellcheck source=launch/command.sh
source "$(dirname "${BASH_SOURCE[0]}")/command.sh"

usage() {
  cat <<'END_OF_USAGE'
Usage: bash launch/gke.sh NAME --image=IMAGE --accelerator=TYPE [OPTIONS] -- VERB FLAGS
       bash launch/gke.sh NAME --image=IMAGE --gpus=N [--nodes=M] [OPTIONS] -- VERB FLAGS
       bash launch/gke.sh NAME --stop

Writes a JobSet that runs `ag-jax VERB FLAGS` on a TPU slice, on several slices or on GPU nodes, and creates it in the
cluster that kubectl is set up for. The cluster needs the JobSet controller and the image one that the Dockerfile of
this repository makes. docs/kubernetes.md explains both.

  bash launch/gke.sh roberta --image=REGISTRY/ag_jax:tpu --accelerator=v5litepod-16 --spot \
    -- train --config=ag/table9_tpu_gpu:hardware=tpu,arm=ag --workdir=gs://BUCKET/roberta
  bash launch/gke.sh roberta --image=REGISTRY/ag_jax:cuda13 --gpus=8 --nodes=2 --gpu_type=nvidia-h100-80gb \
    -- train --config=ag/table9_tpu_gpu:hardware=gpu,arm=ag --workdir=gs://BUCKET/roberta
  bash launch/gke.sh search --image=REGISTRY/ag_jax:cuda13 --gpus=1 --array=4 \
    -- search --config=quickstart_search --workdir=gs://BUCKET/search

An interrupted or preempted run is started again and resumes from its last checkpoint. A run that fails with exit status
1 or 2 is not. After its end, the same command starts it again.

TPUs:
  --accelerator=TYPE      v4-N, v5litepod-N (v5e), v5p-N or v6e-N, as in launch/tpu_create.sh
  --topology=4x4x12       chips along each axis, for a slice of another shape than the usual one of its size
  --slices=1              number of slices, each of several hosts

GPUs:
  --gpus=N                GPUs of each node
  --nodes=1               number of nodes
  --gpu_type=TYPE         nodes with this GPU only, named as by GKE, such as nvidia-h100-80gb (default: any)

Both:
  --array=N               N pods that share the work of compare, finetune, search or prepare; pod K gets --part=K/N.
                          Each has the chips of one node, and is started again without the others
  --image=IMAGE           the container image
  --spot                  on spot nodes: cheaper, but may be preempted at any time (default: on any node)
  --volume=CLAIM:PATH     mount a persistent volume claim at PATH; --workdir, or --config.data.cache_dir of prepare, may
                          then be below PATH, not only at gs://
  --service_account=NAME  Kubernetes service account, which must be allowed to write to the bucket (default: default)
  --namespace=NAME        default: kubectl's
  --restarts=100          how often, at most, the run is started again
  --grace=300             seconds that an interrupted run has to save a checkpoint
  --stop                  let the run save a checkpoint, then delete the JobSet; a --workdir stays
  --dry_run               print the manifest and create nothing; with --stop, print the command

First, `ag-jax VERB FLAGS --print_config` checks the command in this machine's .venv, if there is one.
END_OF_USAGE
}

JOB=workers                  # the replicated job: pods are NAME-workers-SLICE-HOST
CONTAINER=ag-jax             # the container, whose exit statuses the policies are about
PORT=8482                    # of host 0, where the others meet
IMAGE_ROOT=/opt/ag_jax       # where the Dockerfile puts launch/
IMAGE_USER=1000              # the Dockerfile's user and group
PERMANENT="1, 2, 126, 127, 128" # errors that would occur again: of ag-jax, its command line, and a container that cannot start

name="" image="" accelerator="" topology="" slices="" gpus="" nodes="" gpu_type="" array="" spot=no volume=""
service_account="" namespace="" restarts=100 grace=300 stop=no
command=() host_flags=()                 # the words after ag-jax, and those that tell it which hosts there are
resource="" chips="" hosts=1 selector=() # what a pod asks for; hosts are those of a slice
pods=1                                   # of a job: the hosts of a slice, or the parts of an array

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# --- What may be asked for -----------------------------------------------------------------------------

refuse_option() {
  case $1 in
    --*=*) fail "unknown option $1; see bash $0 --help" ;;
    --image | --accelerator | --topology | --slices | --gpus | --nodes | --gpu_type | --array | --volume | \
      --service_account | --namespace | --restarts | --grace) fail "write $1=VALUE, in one word" ;;
    *) fail "did not expect $1; see bash $0 --help" ;;
  esac
}

# number_from LEAST OPTION VALUE
number_from() {
  case $3 in
    '' | *[!0-9]* | 0?* | ???????*) ;;
    *) if [ "$3" -ge "$1" ]; then return; fi ;;
  esac
  fail "$2 expects a whole number from $1 on, got $3"
}

# is_name TEXT: can a resource of Kubernetes have this name?
is_name() {
  case $1 in
    '' | *[!a-z0-9.-]* | [.-]* | *[.-]) return 1 ;;
  esac
}

take_name() {
  if [ -n "$name" ]; then fail "expected one name, got $name and $1"; fi
  case $1 in
    '' | *[!a-z0-9-]* | [!a-z]* | *-) fail "a JobSet's name has small letters, digits and -, begins with a letter and does not end with -: got $1" ;;
  esac
  name=$1
}

# A pod's name is NAME-workers-SLICE-HOST-abcde, and Kubernetes takes 63 letters.
check_length() {
  local longest=$name-$JOB-$((slices - 1))-$((pods - 1))-abcde
  if [ ${#longest} -gt 63 ]; then
    fail "the name $name is $((${#longest} - 63)) letter(s) too long: its pods would be called $longest, and 63 letters are allowed"
  fi
}

# Is what the command writes, --workdir or of prepare the cache, where all pods and later attempts find it?
check_place() {
  local flag=workdir example=runs/first place path=${volume#*:}
  if [ "${command[0]}" = prepare ]; then flag=config.data.cache_dir example=cache; fi
  place=$(flag_of "$flag")
  case $place in
    gs:///*) fail "--$flag=$place names no bucket: expected one such as gs://BUCKET/$example" ;;
    gs://*/?*) return ;;
    gs://*) fail "--$flag=$place names a bucket: expected a folder in it, such as gs://BUCKET/$example" ;;
  esac
  if [ -n "$volume" ]; then
    case $place in
      */../* | */..) ;;
      "$path"/?*) return ;;
    esac
    fail "--$flag=$place must be in a bucket, such as gs://BUCKET/$example, or on the volume, such as" \
      "$path/${example##*/}"
  fi
  if [ -z "$place" ]; then fail "ag-jax ${command[0]} needs --$flag=..., here one like gs://BUCKET/$example"; fi
  fail "--$flag=$place would be on the pod's own disk, which is gone with the pod: expected a bucket, such as" \
    "gs://BUCKET/$example, or a volume (--volume=CLAIM:PATH)"
}

check_volume() {
  local path=${volume#*:}
  if [ -z "$volume" ]; then return; fi
  case $volume in
    *:/?*) ;;
    *) fail "--volume is CLAIM:PATH, such as runs:/runs, got $volume" ;;
  esac
  if ! is_name "${volume%%:*}"; then fail "--volume=$volume: ${volume%%:*} is no name of a persistent volume claim"; fi
  case $path in
    *: | */ | *:* | */../* | */..) fail "--volume=$volume: expected a path such as /runs after the claim, got $path" ;;
  esac
}

# --- TPU slices ------------------------------------------------------------------------------------------

# Each of these prints a fact about a generation, v4, v5litepod, v5p or v6e. The names are GKE's
# (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus).

shapes_of() {
  case $1 in
    v5litepod | v6e) echo 1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16 ;;
    v4 | v5p) echo 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 ;;
  esac
}

node_label_of() {
  case $1 in
    v4) echo tpu-v4-podslice ;;
    v5litepod) echo tpu-v5-lite-podslice ;;
    v5p) echo tpu-v5p-slice ;;
    v6e) echo tpu-v6e-slice ;;
  esac
}

# machine_of GENERATION CHIPS: the type of the nodes with so many chips each.
machine_of() {
  case $1 in
    v4) echo ct4p-hightpu-4t ;;
    v5litepod) echo "ct5lp-hightpu-$2t" ;;
    v5p) echo ct5p-hightpu-4t ;;
    v6e) echo "ct6e-standard-$2t" ;;
  esac
}

# chips_in SHAPE
chips_in() { echo $((${1//x/ * })); }

# The number in an accelerator's name counts the TensorCores of v4 and v5p, two a chip, and the chips of the others.
size_of() {
  case $1 in
    v4 | v5p) echo $(($(chips_in "$2") * 2)) ;;
    *) chips_in "$2" ;;
  esac
}

# nearest GENERATION SIZE: the slices just below and above, such as "v5litepod-16 (4x4) and v5litepod-32 (4x8)".
nearest() {
  local shape below="" above=""
  for shape in $(shapes_of "$1"); do
    if [ "$(size_of "$1" "$shape")" -lt "$2" ]; then
      below="$1-$(size_of "$1" "$shape") ($shape)"
    elif [ -z "$above" ]; then
      above="$1-$(size_of "$1" "$shape") ($shape)"
    fi
  done
  echo "$below${below:+${above:+ and }}$above"
}

# plan_slice: from --accelerator and --topology, what the pods of a slice ask for.
plan_slice() {
  local generation=${accelerator%-*} size=${accelerator##*-} axis='[1-9][0-9]{0,2}' pattern shape found="" other=""
  case $accelerator in
    v5e-*) fail "Google's name for $accelerator is v5litepod-$size" ;;
    v2-* | v3-*) fail "--accelerator=$accelerator: this script knows v4-N, v5litepod-N, v5p-N and v6e-N; launch/tpu_create.sh also rents v2 and v3" ;;
    v4-* | v5litepod-* | v5p-* | v6e-*) ;;
    *) fail "unknown accelerator $accelerator: expected v4-N, v5litepod-N, v5p-N or v6e-N, such as v5litepod-16" ;;
  esac
  number_from 1 "--accelerator=$generation-N" "$size"
  for shape in $(shapes_of "$generation"); do
    if [ "$(size_of "$generation" "$shape")" -eq "$size" ]; then found=$shape; fi
  done
  if [ -z "$found" ]; then
    case $generation in
      v4 | v5p) other="; for another one that GKE has, give --topology=AxBxC too" ;;
    esac
    if [ -z "$topology" ] || [ -z "$other" ]; then
      fail "there is no slice $accelerator; the nearest in size: $(nearest "$generation" "$size")$other"
    fi
  fi
  if [ -n "$topology" ]; then
    case $generation in
      v4 | v5p) pattern="^${axis}x${axis}x$axis\$" ;;
      *) pattern="^$found\$" ;;
    esac
    if ! [[ $topology =~ $pattern ]]; then
      fail "--topology=$topology: expected the chips along each axis of $accelerator, such as ${found:-4x4x12}"
    fi
    if [ "$(size_of "$generation" "$topology")" -ne "$size" ]; then
      fail "--topology=$topology is $generation-$(size_of "$generation" "$topology"), and --accelerator is $accelerator"
    fi
    found=$topology
  fi
  chips=$(chips_in "$found")
  case $generation-$chips in
    v5litepod-8 | v6e-8) ;; # eight chips on one host
    *) if [ "$chips" -gt 4 ]; then chips=4; fi ;;
  esac
  if [ $(($(chips_in "$found") % chips)) -ne 0 ]; then fail "--topology=$found: its $(chips_in "$found") chips are no whole number of hosts with $chips"; fi
  hosts=$(($(chips_in "$found") / chips))
  resource=google.com/tpu
  selector=("cloud.google.com/gke-tpu-accelerator: $(node_label_of "$generation")" "cloud.google.com/gke-tpu-topology: $found")
  if [ "$slices" -gt 1 ] && [ "$hosts" -eq 1 ]; then
    fail "--slices=$slices: GKE connects slices of several hosts only, and $accelerator has one host; the smallest is" \
      "$generation-16"
  fi
  say "$accelerator is $found: $hosts host(s) with $chips chip(s) each, nodes of type $(machine_of "$generation" "$chips")"
}

plan_gpus() {
  hosts=$nodes chips=$gpus resource=nvidia.com/gpu
  case $gpu_type in
    '') ;;
    *[!A-Za-z0-9._-]* | [!A-Za-z0-9]* | *[!A-Za-z0-9]) fail "--gpu_type is a value of the node label cloud.google.com/gke-accelerator, such as nvidia-h100-80gb, got $gpu_type" ;;
    *) selector=("cloud.google.com/gke-accelerator: $gpu_type") ;;
  esac
}

# Set `pods`.
plan_pods() {
  pods=$hosts
  if [ -z "$array" ]; then return; fi
  if [ $((slices * hosts)) -gt 1 ]; then
    fail "--array=$array: each of its pods trains alone, on one node; leave out --nodes and --slices, and take an" \
      "--accelerator of one host, such as v5litepod-8"
  fi
  check_verb_of_array "$array"
  pods=$array
}

# --- The manifest ------------------------------------------------------------------------------------------

# yaml TEXT: as a string in double quotes.
yaml() { printf '"%s"' "$(printf '%s\n' "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g')"; }

# literal TEXT: what Kubernetes, which replaces $(NAME) in a container's command and arguments, turns into TEXT.
literal() { printf '%s\n' "$1" | sed -e 's/\$/$$/g'; }

# Set `host_flags`.
find_hosts() {
  if [ $((slices * hosts)) -gt 1 ]; then check_verb_of_hosts "$name has several hosts"; fi
  if ! takes_hosts || places_hosts "${command[@]}"; then return; fi
  if [ $((slices * hosts)) -eq 1 ]; then
    host_flags=(--hosts=1) # so that nothing is asked for other hosts
  elif [ -n "$gpus" ]; then
    # JAX's own detection would need the package kubernetes, and rights in the cluster.
    host_flags=("--coordinator=$name-$JOB-0-0.$name:$PORT" "--hosts=$hosts" "--host=\$(JOB_COMPLETION_INDEX)")
  else
    # JAX reads the variables that GKE sets in pods with TPUs: TPU_WORKER_ID, TPU_WORKER_HOSTNAMES, MEGASCALE_*.
    host_flags=(--hosts=auto)
  fi
}

manifest() {
  # Hosts end and restart together. The parts of an array do so by themselves, and the others go on if one fails.
  local reason=PodFailurePolicy limit="backoffLimit: 0" action=FailJob names=true
  if [ -n "$array" ]; then
    reason=FailedIndexes limit="backoffLimitPerIndex: $restarts" action=FailIndex names=false
  fi
  cat <<END_OF_PART
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name
END_OF_PART
  # One slice to a node pool, which is how GKE groups the hosts of a slice.
  if [ -n "$accelerator" ] && [ "$hosts" -gt 1 ]; then
    cat <<END_OF_PART
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
END_OF_PART
  fi
  cat <<END_OF_PART
spec:
  failurePolicy:
    maxRestarts: $restarts
END_OF_PART
  # No pod of the last attempt may meet one of the next.
  if [ "$slices" -gt 1 ]; then echo "    restartStrategy: BlockingRecreate"; fi
  cat <<END_OF_PART
    rules:
      - name: permanent_error
        action: FailJobSet
        onJobFailureReasons: [$reason]
  network:
    enableDNSHostnames: $names
    publishNotReadyAddresses: $names
  replicatedJobs:
    - name: $JOB
      replicas: $slices
      template:
        spec:
          completionMode: Indexed
          completions: $pods
          parallelism: $pods
          $limit
          podFailurePolicy:
            rules:
              - action: Count
                onPodConditions:
                  - type: DisruptionTarget
                    status: "True"
              - action: $action
                onExitCodes:
                  containerName: $CONTAINER
                  operator: In
                  values: [$PERMANENT]
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: $grace
END_OF_PART
  if [ -n "$service_account" ]; then echo "              serviceAccountName: $service_account"; fi
  # Slices exchange data over the network of their nodes, without the one of the pods in between.
  if [ "$slices" -gt 1 ]; then
    cat <<END_OF_PART
              hostNetwork: true
              dnsPolicy: ClusterFirstWithHostNet
END_OF_PART
  fi
  manifest_of_nodes
  manifest_of_container
}

manifest_of_nodes() {
  local line
  if [ $spot = yes ]; then selector+=('cloud.google.com/gke-spot: "true"'); fi
  if [ ${#selector[@]} -gt 0 ]; then
    echo "              nodeSelector:"
    for line in "${selector[@]}"; do echo "                $line"; done
  fi
  cat <<END_OF_PART
              tolerations:
                - key: $resource
                  operator: Exists
                  effect: NoSchedule
END_OF_PART
  if [ $spot = yes ]; then
    cat <<END_OF_PART
                - key: cloud.google.com/gke-spot
                  operator: Equal
                  value: "true"
                  effect: NoSchedule
END_OF_PART
  fi
  if [ -n "$volume" ] && [ -n "$gpus" ]; then
    cat <<END_OF_PART
              securityContext:
                fsGroup: $IMAGE_USER
END_OF_PART
  fi
  if [ -n "$volume$gpus" ]; then echo "              volumes:"; fi
  if [ -n "$volume" ]; then
    cat <<END_OF_PART
                - name: workdir
                  persistentVolumeClaim:
                    claimName: ${volume%%:*}
END_OF_PART
  fi
  # NCCL shares memory there, and a container has 64 MB by default.
  if [ -n "$gpus" ]; then
    cat <<END_OF_PART
                - name: shm
                  emptyDir:
                    medium: Memory
END_OF_PART
  fi
}

# The words before those of ag-jax, as a list in YAML. Kubernetes counts pods from 0, and --part counts from 1.
container_command() {
  local worker=$IMAGE_ROOT/launch/gke_worker.sh script
  if [ -z "$array" ]; then
    printf '%s, %s' '"bash"' "$(yaml "$worker")"
    return
  fi
  script="exec bash $worker \"\$@\" --part=\$((JOB_COMPLETION_INDEX + 1))/$array"
  printf '"bash", "-c", %s, %s' "$(yaml "$(literal "$script")")" "$(yaml "$worker")"
}

manifest_of_container() {
  local word platforms=tpu,cpu
  if [ -n "$gpus" ]; then platforms=cuda,cpu; fi
  cat <<END_OF_PART
              containers:
                - name: $CONTAINER
                  image: $(yaml "$image")
                  command: [$(container_command)]
                  args:
END_OF_PART
  set -- "${command[@]}"
  echo "                    - $(yaml "$(literal "$1")")"
  shift
  for word in ${host_flags[@]+"${host_flags[@]}"}; do echo "                    - $(yaml "$word")"; done
  for word in "$@"; do echo "                    - $(yaml "$(literal "$word")")"; done
  cat <<END_OF_PART
                  env:
                    - name: JAX_PLATFORMS
                      value: $platforms
                    - name: PYTHONUNBUFFERED
                      value: "1"
                  resources:
                    limits:
                      $resource: $chips
END_OF_PART
  if [ -n "$gpus" ]; then
    cat <<END_OF_PART
                  securityContext:
                    runAsNonRoot: true
                    allowPrivilegeEscalation: false
END_OF_PART
  else
    # The device files of TPUs belong to root, and their driver locks more memory than a container may.
    cat <<END_OF_PART
                  securityContext:
                    privileged: true
                    runAsUser: 0
END_OF_PART
  fi
  if [ -n "$volume$gpus" ]; then echo "                  volumeMounts:"; fi
  if [ -n "$volume" ]; then
    cat <<END_OF_PART
                    - name: workdir
                      mountPath: $(yaml "${volume#*:}")
END_OF_PART
  fi
  if [ -n "$gpus" ]; then
    cat <<END_OF_PART
                    - name: shm
                      mountPath: /dev/shm
END_OF_PART
  fi
}

# --- The cluster ---------------------------------------------------------------------------------------------

in_cluster() { run kubectl "$@" ${namespace:+--namespace="$namespace"}; }

need_kubectl() {
  command -v kubectl >/dev/null ||
    fail "kubectl is not installed: https://kubernetes.io/docs/tasks/tools, then gcloud container clusters get-credentials CLUSTER"
}

# look: set `state` to NONE (no such JobSet), RUNNING (which includes waiting for nodes), Completed or Failed.
look() {
  local answer
  if ! answer=$(in_cluster get jobsets.jobset.x-k8s.io "$name" --ignore-not-found \
    --output='jsonpath={.metadata.name} {.status.terminalState}' 2>"$scratch/said"); then
    if grep "doesn't have a resource type" "$scratch/said" >/dev/null; then
      fail "the cluster has no JobSet controller, or an older one than v1alpha2: docs/kubernetes.md says how to install it"
    fi
    fail "kubectl does not reach the cluster: $(tail -n 1 "$scratch/said") (gcloud container clusters get-credentials CLUSTER)"
  fi
  case $answer in
    '' | ' ') state=NONE ;;
    "$name "?*) state=${answer#* } ;;
    *) state=RUNNING ;;
  esac
}

# The command that follows the log of host 0 of slice 0, or of part 1, also through later attempts if called again.
log_command() {
  quoted kubectl logs --follow --tail=-1 \
    --selector="jobset.sigs.k8s.io/jobset-name=$name,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0" \
    ${namespace:+--namespace="$namespace"}
}

delete() { in_cluster delete jobsets.jobset.x-k8s.io "$name" --cascade=foreground; }

stop_run() {
  if [ "$dry_run" = yes ]; then
    delete
    return
  fi
  need_kubectl
  look
  if [ "$state" = NONE ]; then
    say "there is no JobSet $name"
    return
  fi
  say "deleting $name ($state); a run that still trains saves a checkpoint first"
  delete >&2 || fail "kubectl could not delete $name (its message is above)"
}

start_run() {
  need_kubectl
  look
  case $state in
    NONE) ;;
    Completed | Failed)
      say "an earlier $name has ended ($state); deleting it"
      delete >&2 || fail "kubectl could not delete $name (its message is above)"
      ;;
    *) fail "$name runs already. Its log: $(log_command). To stop it: bash launch/gke.sh $name --stop${namespace:+ --namespace=$namespace}" ;;
  esac
  in_cluster create --filename="$scratch/manifest" >&2 || fail "kubectl did not create $name (its message is above)"
  say "$name is created: $((slices * pods)) pod(s) with $chips of $resource each. They wait until there are nodes."
  say "its state: $(quoted kubectl get jobsets.jobset.x-k8s.io "$name" ${namespace:+--namespace="$namespace"})"
  if [ -n "$array" ]; then
    say "the log of part 1 (that of part K has the job-completion-index K - 1): $(log_command)"
  else
    say "its log: $(log_command)"
  fi
}

main() {
  local word
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        return
        ;;
      --image=*) image=${1#*=} ;;
      --accelerator=*) accelerator=${1#*=} ;;
      --topology=*) topology=${1#*=} ;;
      --slices=*) number_from 1 --slices "${1#*=}" && slices=${1#*=} ;;
      --gpus=*) number_from 1 --gpus "${1#*=}" && gpus=${1#*=} ;;
      --nodes=*) number_from 1 --nodes "${1#*=}" && nodes=${1#*=} ;;
      --gpu_type=*) gpu_type=${1#*=} ;;
      --array=*) number_from 1 --array "${1#*=}" && array=${1#*=} ;;
      --spot) spot=yes ;;
      --volume=*) volume=${1#*=} ;;
      --service_account=*) service_account=${1#*=} ;;
      --namespace=*) namespace=${1#*=} ;;
      --restarts=*) number_from 0 --restarts "${1#*=}" && restarts=${1#*=} ;;
      --grace=*) number_from 1 --grace "${1#*=}" && grace=${1#*=} ;;
      --stop) stop=yes ;;
      --dry_run) dry_run=yes ;;
      --)
        shift
        break
        ;;
      -*) refuse_option "$1" ;;
      *) take_name "$1" ;;
    esac
    shift
  done
  command=("$@")
  if [ -z "$name" ]; then fail "which run? Give a name; see bash $0 --help"; fi
  for word in ${namespace:+"--namespace=$namespace"} ${service_account:+"--service_account=$service_account"}; do
    if ! is_name "${word#*=}"; then fail "$word: expected small letters, digits, - and ."; fi
  done
  if [ $stop = yes ]; then
    stop_run
    return
  fi

  if [ -n "$accelerator" ] && [ -n "$gpus" ]; then fail "--accelerator is for TPUs and --gpus for GPUs: give one of them"; fi
  if [ -z "$accelerator$gpus" ]; then fail "on which chips? Give --accelerator=TYPE for TPUs, such as v5litepod-16, or --gpus=N"; fi
  if [ -n "$gpus" ] && [ -n "$slices$topology" ]; then fail "--slices and --topology are for TPUs; with --gpus, --nodes is the number of nodes"; fi
  if [ -n "$accelerator" ] && [ -n "$nodes$gpu_type" ]; then
    fail "--nodes and --gpu_type are for GPUs; with --accelerator, the slice has as many nodes as it needs"
  fi
  if [ -z "$image" ]; then fail "which image? Give --image=IMAGE, such as --image=us-docker.pkg.dev/PROJECT/images/ag_jax:tpu; docs/kubernetes.md says how to build it"; fi
  if [ ${#command[@]} -eq 0 ]; then fail "what shall run? Give it after --, such as: -- train --config=FILE --workdir=gs://BUCKET/runs/first"; fi
  case ${command[0]} in
    -*) fail "expected a verb such as train after --, got ${command[0]}" ;;
  esac
  for word in "$image" "$volume" "${command[@]}"; do
    case $word in
      *[[:cntrl:]]*) fail "a line break or another control character in $(quoted "$word")" ;;
    esac
  done
  slices=${slices:-1} nodes=${nodes:-1}
  if [ -n "$accelerator" ]; then plan_slice; else plan_gpus; fi
  plan_pods
  check_length
  check_volume
  check_place
  check_command "in the cluster" ${array:+--part="$array/$array"}
  find_hosts

  if [ "$dry_run" = yes ]; then
    manifest
    return
  fi
  manifest >"$scratch/manifest"
  start_run
}

main "$@"
