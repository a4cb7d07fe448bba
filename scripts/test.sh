#!/usr/bin/env bash
# The whole test suite in .venv (made if missing). Arguments go to pytest: `bash scripts/test.sh -k oracle`.
# Tests on real data sets run when RETRIEVAL_JAX_DATA names their folder, and skip without it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
make_venv dev
# One worker a core, at most four, and no more than memory holds: jax, TensorFlow and what they compiled take up to 6 GB each.
workers="$(python - <<'END'
import os

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
print(max(1, min(4, cores, memory // (6 * 2**30))))
END
)"
exec python -m pytest -n "$workers" --dist loadfile "$@"
