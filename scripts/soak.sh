#!/usr/bin/env bash
# Trainings that are killed, stopped, starved of room and damaged at random moments end in the bits of an undisturbed one: prints
# a table, and exits with 0 only if every line of it holds. Under 30 minutes on two cores; --quick: two. See scripts/soak/.
set -euo pipefail
here="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
help_before_install "$@"
make_venv dev
root="$PWD"
cd "$here"
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec python -m scripts.soak "$@"
