"""The encoding program: a task's passages and queries to embeddings on disk. `python -m retrieval_jax.encode`."""

import pathlib
from collections.abc import Callable

from retrieval_jax import paths
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.encoding import NAMES
from retrieval_jax.searchers import DenseSearcher, EncodedSide, require_dense


def encode(
  searcher: DenseSearcher,
  data: RetrievalData,
  *,
  output_dir: str | None = None,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> pathlib.Path:
  """Encodes the task's passages and queries; returns the folder with passages/ and queries/.

  output_dir: keep them in output_dir/<task>/step_<n> instead of MODEL_DIR/encode/<task>/step_<n>. Each side is written
  shard by shard (embedding_writer.py). Shards that are there for these very parameters, texts and input settings are
  kept, so that the same command goes on where it was interrupted; those of anything else are replaced.
  """
  del on_start
  require_dense(searcher)
  if output_dir is not None:
    searcher = searcher._replace(keep_in=paths.output_dir(output_dir, "OUTPUT_DIR"))
  folder = searcher.folder(data)
  assert folder is not None
  for side in ("passage", "query"):
    print(_report(NAMES[side], searcher.encoded(data, side)), flush=True)
  return folder


def _report(name: str, found: EncodedSide) -> str:
  """Returns a line that says how many rows are where, and what it took."""
  rows = len(found.embeddings)
  if not found.encoded:
    return f"{name}: {rows:,} rows in {found.folder}, all encoded before"
  kept = f", {rows - found.encoded:,} encoded before" if found.encoded < rows else ""
  rate = found.encoded / max(found.seconds, 1e-9)
  return (
    f"{name}: {rows:,} rows in {found.folder}; {found.encoded:,} encoded in {found.seconds:.1f} s "
    f"({rate:,.0f} rows/s){kept}"
  )


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("encode")
