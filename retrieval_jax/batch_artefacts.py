"""What a refresh decided, as files that are written once: MODEL_DIR/batches/<kind>_<step>.npz."""

import json
import pathlib
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from retrieval_jax import processes
from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write

FOLDER = "batches"
_RECORD, _PLAIN = "record", "plain"
_COPY = "It is part of the checkpoint: copy MODEL_DIR with its folder batches, or start in another MODEL_DIR from its weights."
_NAME = re.compile(r"([a-z]+)_(\d+)\.np[yz]")

Arrays = Mapping[str, np.ndarray]


def as_arrays(state: Mapping[str, Any]) -> Arrays:
  """Returns a plan's state as arrays alone: its JSON values are one text.

  Example: `as_state(as_arrays({"since": 3, "members": members}))` is the same again.
  """
  plain = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
  arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
  return {**arrays, _PLAIN: np.array(json.dumps(plain))}


def as_state(arrays: Arrays) -> dict[str, Any]:
  """Returns the state that `as_arrays` made arrays of."""
  return {**json.loads(str(arrays[_PLAIN])), **{name: x for name, x in arrays.items() if name != _PLAIN}}


def artefact(folder: pathlib.Path, kind: str, step: int) -> pathlib.Path:
  """Returns the file of what was decided before batch `step`.

  Example: `artefact(folder, "clusters", 120)` is `folder/clusters_00000120.npz`.
  """
  return folder / f"{kind}_{step:08d}.npz"


def step_of(path: pathlib.Path) -> int:
  """Returns the step of an artefact's name."""
  match = _NAME.fullmatch(path.name)
  if match is None:
    raise ValueError(f"{path.name} is no artefact's name")
  return int(match[2])


def write_once(
  path: pathlib.Path, record: Mapping[str, object], compute: Callable[[], Arrays], *, together: bool = False
) -> Arrays:
  """Returns the arrays of the file; where there is none of this record, process 0 computes and writes them first.

  Whatever was decided once is not decided again: embeddings that differ in the last digit make other clusters. All
  processes read the one file, so all form the same batches; MODEL_DIR is one folder for all of them.
  record: JSON values that say what the arrays follow from; a file of another record is replaced.
  together: `compute` is collective, as encoding is: all processes call it, and process 0's result is written.

  Raises: UserError if the file cannot be written, and what `compute` raises.

  Example: `write_once(path, {"seed": 0}, lambda: {"members": members})["members"]`.
  """
  first = processes.is_first()
  if processes.agree(not _is_of(path, record) if first else None):
    arrays = compute() if first or together else {}
    if first:
      _write(path, record, arrays)
    processes.wait_for_all(path.name)
  return read(path)


def _write(path: pathlib.Path, record: Mapping[str, object], arrays: Arrays) -> None:
  try:
    with atomic_write(path, "wb") as file:
      np.savez(file, allow_pickle=False, **{_RECORD: np.array(_text(record)), **arrays})
  except OSError as error:
    raise UserError(
      f"{path} cannot be written: {error.strerror}. Free some room, or choose another MODEL_DIR."
    ) from error


def read(path: pathlib.Path) -> Arrays:
  """Returns the arrays of a file that `write_once` wrote.

  Raises: UserError if it is not there or damaged.
  """
  try:
    with open(path, "rb") as opened, np.load(opened) as file:
      return {name: file[name] for name in file.files if name != _RECORD}
  except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
    raise UserError(f"{path}: the batches of this checkpoint cannot be read ({error}). {_COPY}") from error


def record_of(path: pathlib.Path) -> Mapping[str, object]:
  """Returns what the arrays of a file follow from, as it was given to `write_once`; nothing if it cannot be read."""
  try:
    with open(path, "rb") as opened, np.load(opened) as file:
      return json.loads(str(file[_RECORD]))
  except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
    return {}


def cluster_state(path: pathlib.Path, arrays: Arrays, *, num_examples: int) -> dict[str, Any]:
  """Returns the state of a plan with clusters.

  Raises: UserError if the arrays are not one: every example in one cluster.

  Example: `cluster_state(path, read(path), num_examples=12_000)["cluster_size"]`.
  """
  try:
    state = as_state(arrays)
    size, members, offsets = int(state["cluster_size"]), state.get("members"), state.get("offsets")
  except (KeyError, ValueError, TypeError) as error:
    raise UserError(f"{path} holds no clusters ({error!r}). {_COPY}") from error
  if members is None and offsets is None and size == 1:
    return state
  whole = (
    members is not None
    and offsets is not None
    and np.array_equal(np.sort(members), np.arange(num_examples))
    and len(offsets) > 1
    and offsets[0] == 0
    and offsets[-1] == num_examples
    and np.diff(offsets).min() > 0
    and np.diff(offsets).max() <= size
  )
  if not whole:
    raise UserError(f"{path} does not have each of {num_examples} examples in one cluster. {_COPY}")
  return state


def _is_of(path: pathlib.Path, record: Mapping[str, object]) -> bool:
  return _text(record_of(path)) == _text(record)


def _text(record: Mapping[str, object]) -> str:
  return json.dumps(record, sort_keys=True)


def prune(folder: pathlib.Path, kind: str, oldest: int, *, earlier: int = 1) -> None:
  """Deletes the artefacts that no checkpoint from step `oldest` on needs.

  earlier: so many of those from before that step are kept. One: what was decided before batch `oldest` is not yet in force in
  a checkpoint after `oldest` batches, but what was decided before that. None of what is saved with each checkpoint.
  """
  files = sorted(
    (path for path in folder.glob(f"{kind}_*.np[yz]") if _NAME.fullmatch(path.name)), key=step_of
  )
  before = [path for path in files if step_of(path) < oldest]
  for path in before[: len(before) - earlier]:
    path.unlink(missing_ok=True)


def clear(folder: pathlib.Path) -> None:
  """Deletes what an earlier training without a checkpoint left behind."""
  for path in folder.glob("*.np[yz]"):
    path.unlink(missing_ok=True)
