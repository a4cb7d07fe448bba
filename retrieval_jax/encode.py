"""The encoding program: a task's passages and queries to embeddings on disk. `python -m retrieval_jax.encode`."""

import pathlib
from collections.abc import Callable

from retrieval_jax import paths
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.searchers import DenseSearcher, require_dense


def encode(
  searcher: DenseSearcher,
  data: RetrievalData,
  *,
  output_dir: str | None = None,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> pathlib.Path:
  """Encodes the task's passages and queries; returns the folder with passages/ and queries/.

  output_dir: keep them in output_dir/<task>/step_<n> instead of MODEL_DIR/encode/<task>/step_<n>. Each side is written
  whole (see embeddings.write_embeddings); a side that is already there for this very checkpoint, text and input settings
  is kept.
  """
  del on_start
  require_dense(searcher)
  if output_dir is not None:
    searcher = searcher._replace(keep_in=paths.output_dir(output_dir, "OUTPUT_DIR"))
  searcher.passages(data)
  searcher.queries(data)
  folder = searcher.folder(data)
  assert folder is not None
  print(f"{data.passages.num_rows:,} passages and {data.queries.num_rows:,} queries in {folder}")
  return folder


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("encode")
