"""The encoding program: a task's passages and queries to embeddings on disk. `python -m retrieval_jax.encode`."""

import pathlib
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Float

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.embeddings import open_embeddings, write_embeddings
from retrieval_jax.evaluation import DenseSearcher


def encode(
  searcher: DenseSearcher,
  data: RetrievalData,
  *,
  model_dir: str,
  output_dir: str | None = None,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> pathlib.Path:
  """Encodes the task's passages and queries; returns the folder with passages/ and queries/.

  output_dir: default MODEL_DIR/encode/<task>/step_<n>. Each side is written whole (see embeddings.write_embeddings); a
  side that is already there for this very checkpoint, task and input settings is kept.
  """
  del on_start
  folder = pathlib.Path(output_dir) if output_dir else encode_folder(model_dir, data, searcher)
  passage_embeddings(folder, searcher, data)
  manifest = _manifest(searcher, data)
  if open_embeddings(folder / "queries", manifest) is None:
    embedded = searcher.encoder.queries(data.queries)
    if jax.process_index() == 0:
      write_embeddings(folder / "queries", embedded, data.queries.ids, manifest)
  print(f"{data.passages.num_rows:,} passages and {data.queries.num_rows:,} queries in {folder}")
  return folder


def encode_folder(model_dir: str, data: RetrievalData, searcher: DenseSearcher) -> pathlib.Path:
  """Returns MODEL_DIR/encode/<task>/step_<n>; the split's name is added unless it is "test"."""
  name = data.name if data.split == "test" else f"{data.name}_{data.split}"
  return pathlib.Path(model_dir).absolute() / "encode" / name / f"step_{searcher.step}"


def passage_embeddings(
  folder: pathlib.Path, searcher: DenseSearcher, data: RetrievalData
) -> Float[np.ndarray, "c d"]:
  """Returns the passages' embeddings: folder/passages where it is of this checkpoint and task, else made and written."""
  manifest = _manifest(searcher, data)
  found = open_embeddings(folder / "passages", manifest)
  if found is None:
    found = searcher.encoder.passages(data.passages)
    if jax.process_index() == 0:
      write_embeddings(folder / "passages", found, data.passages.ids, manifest)
  return found


def _manifest(searcher: DenseSearcher, data: RetrievalData) -> dict:
  return {
    "checkpoint": searcher.checkpoint,
    "step": searcher.step,
    "task": data.name,
    "task_fingerprint": data.fingerprint,
    "dtype": searcher.encoder.dtype,
  }


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("encode")
