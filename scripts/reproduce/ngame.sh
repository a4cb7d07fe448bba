#!/usr/bin/env bash
# NGAME beside its rivals on a set of extreme classification: MiniLM as it is and BM25; fine-tuned on random, TAS-like and
# NGAME batches and with ANCE-like negatives, at equal steps and at equal CPU time; then label classifiers and fusion.
# Everything lands in the folder RUN (default runs/ngame); a second call goes on from what is there.
#
#   RETRIEVAL_JAX_DATA=... bash scripts/reproduce/ngame.sh                      xc_yso_titles_small, one seed
#   bash scripts/reproduce/ngame.sh --data=data/xc_yso_titles_40k --seeds=3     any folder in the LF layout, more seeds
#   bash scripts/reproduce/ngame.sh --help
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../venv.sh"
help_before_install "$@"
make_venv bm25
RUN="${RUN:-runs/ngame}"
python scripts/reproduce/ngame.py --run="$RUN" "$@"
