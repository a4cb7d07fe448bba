"""The search program: query text in, ranked passages out. `python -m retrieval_jax.search --gin.MODEL_DIR=... "query"`."""

import pathlib
import sys
import textwrap
from collections.abc import Callable, Sequence

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import DenseSearcher, require_dense

SNIPPET_CHARACTERS = 220


def search(
  queries: Sequence[str],
  searcher: DenseSearcher,
  data: RetrievalData,
  inputs: TextInputs,
  *,
  k: int = 5,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> Ranking:
  """Prints the k best passages of each query and returns their rows and scores.

  The corpus is encoded once per checkpoint and kept in MODEL_DIR/encode/<task>/step_<n>; later calls only encode the
  queries. A k above the number of passages shows them all, and says so.
  """
  del on_start
  require_dense(searcher)
  if not queries or not all(query.strip() for query in queries):
    raise UserError('no query: give the text to search for, for example `... "sort an array along an axis"`.')
  if k < 1:
    raise UserError(f"K={k}: expected at least 1.")
  index = searcher.index(data)
  if k > len(index):
    print(f"K={k}: the corpus has {len(index)} passages; all of them are shown", file=sys.stderr)
  ranking = index.search(searcher.encoder.texts("query", queries, inputs), k=min(k, len(index)))
  for query, rows, scores in zip(queries, ranking.rows, ranking.scores, strict=True):
    print(f"\nquery: {query}")
    found = rows >= 0  # an approximate index may find fewer
    for rank, (row, score) in enumerate(zip(rows[found], scores[found], strict=True), start=1):
      text = " ".join(data.passages.texts[int(row)].split())
      print(f"{rank:>3}  {score:.4f}  {data.passages.ids[int(row)]}")
      print(textwrap.indent(textwrap.fill(textwrap.shorten(text, SNIPPET_CHARACTERS), 100), " " * 13))
  return ranking


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("search")
