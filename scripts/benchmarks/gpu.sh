#!/usr/bin/env bash
# Measures a training step of T5 1.1 base on one GPU, ours and PyTorch's, in one call under 8 minutes (gpu.py says what and how).
# Downloads and installs nothing: the Python is the one that PYTHON names, else .venv's if there is one, else python3, and needs jax
# with CUDA, flax, optax and jaxtyping; torch and transformers for the comparison. Arguments go to gpu.py, --help among them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python="${PYTHON:-}"
if [ -z "$python" ]; then
  python=python3
  [ ! -x .venv/bin/python ] || python=.venv/bin/python
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
# 450 s for the parts, and 20 s more for whatever does not end by itself: under 8 minutes.
exec timeout --kill-after=5 470 "$python" scripts/benchmarks/gpu.py "$@"
