"""Embeddings on disk: embeddings.npy, ids.jsonl and a manifest that says what they are of; whole or not there."""

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from retrieval_jax.errors import UserError


def write_embeddings(
  folder: pathlib.Path, embeddings: Float[np.ndarray, "c d"], ids: Iterable[str], manifest: Mapping[str, Any]
) -> None:
  """Writes the folder atomically (a temporary folder beside it is renamed), replacing an older one.

  Files: embeddings.npy float32 [c, d] (numpy.load(..., mmap_mode="r") reads it), ids.jsonl (row i's id as a JSON
  string on line i), manifest.json.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  temporary = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
  try:
    np.save(temporary / "embeddings.npy", embeddings)
    with open(temporary / "ids.jsonl", "w", encoding="utf-8", newline="\n") as file:
      file.writelines(json.dumps(identifier, ensure_ascii=False) + "\n" for identifier in ids)
    record = {**manifest, "rows": int(embeddings.shape[0]), "embed_dim": int(embeddings.shape[1])}
    (temporary / "manifest.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.chmod(temporary, 0o755)
    if folder.exists():
      shutil.rmtree(folder)
    os.rename(temporary, folder)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise


def open_embeddings(folder: pathlib.Path, manifest: Mapping[str, Any]) -> Float[np.ndarray, "c d"] | None:
  """Returns the memory-mapped embeddings when the folder's manifest agrees with every entry given, else None.

  Raises: UserError when the manifest agrees but the array is not the one it describes (a damaged folder).
  """
  path = folder / "manifest.json"
  if not path.is_file():
    return None
  try:
    record = json.loads(path.read_text(encoding="utf-8"))
  except ValueError:
    return None  # damaged: made again
  if not isinstance(record, dict) or not (folder / "ids.jsonl").is_file():
    return None
  if any(record.get(name) != value for name, value in manifest.items()):
    return None
  try:
    embeddings = np.load(folder / "embeddings.npy", mmap_mode="r")
  except (OSError, ValueError) as error:
    raise UserError(
      f"{folder}/embeddings.npy is damaged ({error}); delete the folder and encode again."
    ) from error
  if embeddings.shape != (record["rows"], record["embed_dim"]):
    raise UserError(
      f"{folder}/embeddings.npy has shape {embeddings.shape}, its manifest says {(record['rows'], record['embed_dim'])}; "
      "delete the folder and encode again."
    )
  return embeddings
