#!/usr/bin/env bash
# From a clean clone to a fine-tuned retriever: installs into .venv, builds the pydocs data from the docstrings of the
# installed packages, evaluates BM25 and MiniLM as it is, fine-tunes it with SamToNe, evaluates again, prints the table.
# Everything lands in the folder RUN (default runs/quickstart); a second call goes on from what is there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
make_venv bm25
RUN="${RUN:-runs/quickstart}"
started=$SECONDS

echo "--- 1/5 pydocs: query = what a function does, passage = the rest of its docstring"
python -m retrieval_jax.data.pydocs
echo "--- 2/5 BM25 on the test split"
python -m retrieval_jax.eval --gin_file=models/minilm.gin --gin_file=searchers/bm25.gin --gin_file=data/pydocs.gin \
  --gin.MODEL_DIR="$RUN/bm25"
echo "--- 3/5 MiniLM as it is, on the test split"
python -m retrieval_jax.eval --gin_file=models/minilm.gin --gin_file=data/pydocs.gin --gin.MODEL_DIR="$RUN/zero_shot"
echo "--- 4/5 fine-tune: one tower for both sides (SDE), SamToNe loss"
# The dry run checks and tokenises first: the training process then needs no TensorFlow, 0.7 GB less.
python -m retrieval_jax.train --gin_file=experiments/pydocs_minilm_samtone.gin --gin.MODEL_DIR="$RUN/samtone" \
  --gin.DRY_RUN=True
python -m retrieval_jax.train --gin_file=experiments/pydocs_minilm_samtone.gin --gin.MODEL_DIR="$RUN/samtone"
echo "--- 5/5 the fine-tuned model on the test split"
python -m retrieval_jax.eval --gin_file=data/pydocs.gin --gin.MODEL_DIR="$RUN/samtone"
echo
python scripts/compare_runs.py pydocs "BM25=$RUN/bm25" "MiniLM zero-shot=$RUN/zero_shot" "MiniLM + SamToNe=$RUN/samtone"
echo
echo "took $((SECONDS - started)) s after the install. Ask it something:"
echo "  python -m retrieval_jax.search --gin_file=data/pydocs.gin --gin.MODEL_DIR=$RUN/samtone \\"
echo "    \"Return the cumulative product of elements along an axis\""
