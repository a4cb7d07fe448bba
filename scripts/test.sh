#!/usr/bin/env bash
# The whole test suite in .venv (made if missing). Arguments go to pytest: `bash scripts/test.sh -k oracle`.
# Tests on real data sets run when RETRIEVAL_JAX_DATA names their folder, and skip without it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
make_venv dev
# One worker a core, at most four: a worker holds jax and TensorFlow, up to 3 GB.
cores="$(python -c "import os; print(min(4, len(os.sched_getaffinity(0)) if hasattr(os, \"sched_getaffinity\") else 4))")"
exec python -m pytest -n "$cores" --dist loadfile "$@"
