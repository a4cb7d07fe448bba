#!/usr/bin/env bash
# SamToNe (Moiseev et al. 2023) in miniature: ADE, ADE-SPL and SDE with the standard loss, PAIR, SamToNe on the query side and on
# both (equal texts masked), MiniLM towers, two seeds; then SamToNe on NGAME's batches with SOGram's gravity. Prints a table
# beside the paper's numbers and which of its claims held, and draws its figures 1, 5 and 6.
# Everything lands in the folder RUN (default runs/samtone); a second call goes on from what is there.
#
#   bash scripts/reproduce/samtone.sh                              pydocs, under 40 minutes on 2 cores
#   bash scripts/reproduce/samtone.sh --data=data/scifact          any folder in BEIR's layout
#   bash scripts/reproduce/samtone.sh --help
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../venv.sh"
help_before_install "$@"
make_venv plots
RUN="${RUN:-runs/samtone}"
python -m retrieval_jax.data.pydocs
python scripts/reproduce/samtone.py --run="$RUN" "$@"
