#!/usr/bin/env bash
# Gramian estimation (Krichene et al. 2019) in miniature: how far the estimators are from the exact Gramians along one training,
# as the paper's figures 2 and 3, and MAP@10 of the models they train, on real graphs and a planted one.
# Everything lands in the folder RUN (default runs/gramian); a second call goes on from what is there.
#
#   RETRIEVAL_JAX_DATA=... bash scripts/reproduce/gramian.sh                  all parts, under 30 minutes on 2 cores
#   bash scripts/reproduce/gramian.sh --parts packages --seeds 5              one part, more seeds
#   bash scripts/reproduce/gramian.sh --help
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../venv.sh"
help_before_install "$@"
make_venv plots
RUN="${RUN:-runs/gramian}"
python scripts/reproduce/gramian.py --run="$RUN" "$@"
