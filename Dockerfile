# Image of ag_jax for one kind of chip, with the pinned packages of requirements.txt.
#
#   docker build --build-arg ACCELERATOR=tpu --tag ag_jax:tpu .
#   docker run --rm --volume "$PWD/runs:/runs" ag_jax:cpu train --config=quickstart:arm=ag --workdir=/runs/first
#
# ACCELERATOR   cpu, cuda12, cuda13 or tpu
# RUN_AS        user:group of the processes; the default has no root rights
# PYTHON        the version that requirements.txt is made for

ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm

ARG ACCELERATOR=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1

WORKDIR /opt/ag_jax
# The packages first: their layer stays as it is when only the program changes.
COPY requirements.txt ./
# "jax[tpu]" takes its version from the pinned jax. gcsfs is for a --workdir at gs://.
RUN case "$ACCELERATOR" in \
      cpu) pip install -r requirements.txt gcsfs ;; \
      cuda12 | cuda13 | tpu) pip install -r requirements.txt "jax[$ACCELERATOR]" gcsfs ;; \
      *) echo "ACCELERATOR=$ACCELERATOR: expected cpu, cuda12, cuda13 or tpu" >&2; exit 1 ;; \
    esac
COPY pyproject.toml setup.py README.md LICENSE ./
COPY ag_jax ag_jax
COPY configs configs
RUN pip install --no-deps .

RUN useradd --uid 1000 --user-group --create-home ag_jax
ENV HOME=/home/ag_jax
WORKDIR /home/ag_jax
# A number, by which a cluster can tell that it is not root.
ARG RUN_AS=1000:1000
USER ${RUN_AS}
ENTRYPOINT ["ag-jax"]
