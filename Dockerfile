# An image of retrieval_jax for TPUs (GKE, xpk), GPUs (SLURM with containers, Kubernetes) or CPUs:
#
#   docker build -t retrieval_jax .                        # --build-arg EXTRA=gpu or EXTRA=cpu for others; default tpu
#   docker run --rm retrieval_jax retrieval_jax.train --help
#   docker run --rm --gpus=all -v /data:/data retrieval_jax retrieval_jax.train --gin_file=/data/run.gin --gin.MODEL_DIR=/data/run
#
# Nothing in it runs as root: what a run writes must be writable for the user 1000, or name another one (docker run --user). The
# versions are those of constraints.txt.
ARG PYTHON_VERSION=3.12
FROM python:${PYTHON_VERSION}-slim

# Of setup.py's extras: tpu or gpu; cpu installs none.
ARG EXTRA=tpu
# More of them, such as ",gcs,bm25" (with the comma).
ARG MORE_EXTRAS=""

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    TF_CPP_MIN_LOG_LEVEL=3

WORKDIR /opt/retrieval_jax

# What is installed depends on these files alone: a change of the code does not install jax and TensorFlow anew.
COPY setup.py pyproject.toml constraints.txt README.md ./
COPY retrieval_jax/__init__.py retrieval_jax/
COPY tasks/__init__.py tasks/
COPY configs/__init__.py configs/
RUN case "${EXTRA}" in \
      tpu|gpu) extras="${EXTRA}${MORE_EXTRAS}" ;; \
      cpu) extras="${MORE_EXTRAS#,}" ;; \
      *) echo "EXTRA=${EXTRA}: expected tpu, gpu or cpu" >&2; exit 2 ;; \
    esac; \
    pip install ".[${extras}]" -c constraints.txt

COPY retrieval_jax retrieval_jax
COPY tasks tasks
COPY configs configs
COPY scripts scripts
RUN pip install --no-deps --force-reinstall . \
    && useradd --create-home --uid 1000 runner

USER 1000
ENV HOME=/home/runner
# Not the folder of the sources, which would hide the installed package.
WORKDIR /home/runner
# Hands SIGTERM on, which a training answers by saving, and starts a program again after exit codes 75 and 76.
ENTRYPOINT ["bash", "/opt/retrieval_jax/scripts/keep_running.sh", "--", "python", "-m"]
CMD ["retrieval_jax.train", "--help"]
