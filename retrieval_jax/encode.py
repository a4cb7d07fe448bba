"""The encoding program: a task's passages and queries to embeddings on disk. `python -m retrieval_jax.encode`."""

import pathlib
from collections.abc import Callable

from retrieval_jax import paths, processes
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.encoding import NAMES
from retrieval_jax.models.dual_encoder import Side
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
  sides: tuple[Side, ...] = ("passage", "query")
  for side, store in zip(sides, (data.passages, data.queries), strict=True):
    found = searcher.encoded(data, side)
    if processes.is_first():
      print(_report(NAMES[side], found, int(store.empty.sum())), flush=True)
  return folder


def _report(name: str, found: EncodedSide, empty: int) -> str:
  """Returns a line that says how many rows are where, how many of them are empty texts, and what it took."""
  rows = len(found.embeddings)
  there = f"{name}: {rows:,} rows{f' ({empty:,} of empty texts)' if empty else ''} in {found.folder}"
  if not found.encoded:
    return f"{there}, all encoded before"
  kept = f", {rows - found.encoded:,} encoded before" if found.encoded < rows else ""
  rate = found.encoded / max(found.seconds, 1e-9)
  return f"{there}; {found.encoded:,} encoded in {found.seconds:.1f} s ({rate:,.0f} rows/s){kept}"


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("encode")
