#!/usr/bin/env bash
# The whole test suite in .venv (made if missing). Arguments go to pytest: `bash scripts/test.sh -k oracle`.
# Tests on real data sets run when RETRIEVAL_JAX_DATA names their folder, and skip without it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
make_venv dev
exec python -m pytest "$@"
