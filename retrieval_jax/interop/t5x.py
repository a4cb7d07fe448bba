"""Reads T5X checkpoints (T5X's own format and Orbax's) into towers, and writes towers of T5 as T5X's own."""

import contextlib
import os
import pathlib
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from retrieval_jax.errors import UserError
from retrieval_jax.interop import (
  finite,
  t5x_architecture,
  t5x_native,
  t5x_orbax,
  t5x_target,
  vocabulary_rows,
)
from retrieval_jax.interop.foreign import ForeignModel, ForeignTower, TextSpec
from retrieval_jax.interop.new_folder import remove, write_failure
from retrieval_jax.interop.report import Parameter, ParameterReport
from retrieval_jax.interop.t5x_layout import PARTS, Place, Side, few, placed, places
from retrieval_jax.interop.t5x_leaves import Leaves
from retrieval_jax.interop.tensor_files import is_finite

TARGET: Final = "target/"
STATE: Final = "state"
LEFTOVER: Final = re.compile(r"checkpoint_\d+\.tmp-.*")
UNFINISHED: Final = re.compile(r".+\.(tmp-|orbax-checkpoint-tmp).*")

# A part of a tower, its parameters under our names and what the report says of them.
Parts = dict[tuple[Side | None, str], tuple[dict[str, np.ndarray], list[Parameter]]]


def read_arrays(checkpoint: pathlib.Path, *, prefix: str = "") -> dict[str, np.ndarray]:
  """Returns the arrays of a T5X checkpoint by slash-joined names, "target/encoder/..." and "state/...", sorted.

  checkpoint: a folder checkpoint_<step> in T5X's own format (of any version) or Orbax's, or Orbax's item `state`.
  prefix: only names that start with it are read, such as "target/" for no optimizer state.
  Types are those of the file; bfloat16 comes as ml_dtypes' type, also where the file has its bits as uint16.

  Raises: UserError naming the file if the checkpoint is missing, damaged, unfinished or of another kind.

  Example: `read_arrays(folder / "checkpoint_1000")["target/token_embedder/embedding"]`.
  """
  leaves = _leaves(checkpoint)
  return leaves.read(name for name in sorted(leaves.by_name) if name.startswith(prefix))


def read(checkpoint: pathlib.Path, *, vocab_size: int | None = None) -> ForeignModel:
  """Returns the towers of a T5X checkpoint of a T5 encoder, an encoder-decoder or a dual encoder.

  vocab_size: rows of the token table, where they should not be those of the file: zeros are added or rows cut, and
    the report says so.
  passage is None where the file has one tower. T5X Retrieval's left_ and right_ are query and passage; parts
  without either belong to both. Where nothing in the file tells, T5's values are taken: 128 as the largest distance,
  epsilon 1e-6, relu in T5 1.0 and gelu where it is gated, mean pooling and L2 normalisation. The report on what
  belongs to neither tower (decoder, optimizer state) is the query tower's.

  Raises: UserError as `read_arrays` does, and for parameters that are missing, have no place, or are not finite.

  Example: `print(read(folder / "checkpoint_1000", vocab_size=32_128).query.report)`.
  """
  leaves = _leaves(checkpoint)
  names = [name.removeprefix(TARGET) for name in leaves.by_name if name.startswith(TARGET)]
  if not names:
    raise UserError(
      f"{checkpoint}: no parameters (nothing under {TARGET}). Is this a T5X checkpoint of a model?"
    )
  place_of = places(names, checkpoint)
  parts = _parts({name: place for name, place in place_of.items() if place}, leaves)
  if vocab_size is not None:
    for values, rows in (held for (_, part), held in parts.items() if part == "token_embedder"):
      _resize(values, rows, vocab_size)
  _check_sides(parts, checkpoint)
  left = [
    Parameter(TARGET + name, "", "left", leaves.shape(TARGET + name), "decoder")
    for name, place in place_of.items()
    if place is None
  ]
  query = _tower(parts, "query", [*left, *_left_groups(leaves)], checkpoint)
  symmetric = all(side is None for side, _ in parts)
  return ForeignModel(query, None if symmetric else _tower(parts, "passage", [], checkpoint))


def write(folder: pathlib.Path, model: ForeignModel, *, step: int = 0) -> pathlib.Path:
  """Writes <folder>/checkpoint_<step>, a checkpoint in T5X's own format without optimizer state, and returns it.

  Parts of which both towers hold the same arrays are written once, others as left_ (query) and right_ (passage). The
  checkpoint appears whole or not at all. Text settings (vocabulary, prefix, lengths) have no place in it.

  Raises: UserError if a tower is no T5, if it differs from T5 in what such a checkpoint does not say (the activation,
    the pooling, ...), if a parameter is not finite, if the checkpoint exists, or if the folder cannot be written.

  Example: `write(pathlib.Path("/tmp/t5x"), read(checkpoint))`.
  """
  if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**31:
    raise UserError(f"step={step!r}: expected a whole number from 0 to 2,147,483,647.")
  target = t5x_target.target(model)
  finite.check(folder, *(tower for tower in model if tower is not None))
  final = folder / f"checkpoint_{step}"
  if os.path.lexists(final):
    raise UserError(f"{final}: exists already. Choose another folder or step, or remove it.")
  made = not os.path.lexists(folder)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(dir=folder, prefix=f"{final.name}.tmp-"))
  except OSError as error:
    raise UserError(f"{folder}: cannot be written ({error.strerror}). Choose another folder.") from None
  try:
    t5x_native.write(temporary, target, step=step)
    temporary.chmod(0o755)
    os.rename(temporary, final)
  except BaseException as error:
    remove(temporary)
    if made:
      with contextlib.suppress(OSError):  # not empty: another process writes here too
        folder.rmdir()
    if reason := write_failure(error):
      raise UserError(
        f"{final}: could not be written ({reason}). Is the disk full? Nothing is left of it."
      ) from error
    raise
  return final


def is_free(folder: pathlib.Path) -> bool:
  """Returns whether a folder is absent, empty, or holds nothing but what killed writers of checkpoints left."""
  if not os.path.lexists(folder):
    return True
  return folder.is_dir() and all(LEFTOVER.fullmatch(child.name) for child in folder.iterdir())


def _leaves(checkpoint: pathlib.Path) -> Leaves:
  folder = checkpoint.expanduser()
  if folder.is_file() and folder.name == t5x_native.INDEX:
    folder = folder.parent
  if not folder.is_dir():
    raise UserError(f"{checkpoint}: no such folder. Name the folder checkpoint_<step> of a T5X checkpoint.")
  if any(UNFINISHED.fullmatch(part) for part in folder.absolute().parts[-2:]):
    raise UserError(f"{checkpoint}: the name of a checkpoint that was not finished. Use an earlier one.")
  if t5x_orbax.is_item(folder) or t5x_orbax.is_checkpoint(folder):
    return t5x_orbax.leaves(folder)
  if (folder / t5x_native.INDEX).is_file():
    return t5x_native.leaves(folder)
  steps = sorted(child.name for child in folder.glob("checkpoint_*") if not UNFINISHED.fullmatch(child.name))
  hint = f"It holds {few(steps)}: name one of them." if steps else "Name the folder of a T5X checkpoint."
  raise UserError(f"{checkpoint / t5x_native.INDEX}: no such file, nor Orbax's folder 'state'. {hint}")


def _parts(place_of: Mapping[str, Place], leaves: Leaves) -> Parts:
  parts: Parts = {}
  arrays = leaves.read(TARGET + name for name in place_of)
  for name, place in place_of.items():
    source = TARGET + name
    array = arrays.pop(source)  # freed as it is converted: models of many gigabytes pass here
    _check_numbers(array, source, leaves.folder, scanned=place.scanned)
    got = placed(place, array)
    values, rows = parts.setdefault((place.side, place.part), ({}, []))
    if twice := sorted(got.values.keys() & values.keys()):
      raise UserError(
        f"{leaves.folder}: {source} gives {few(twice)} again. A T5X checkpoint has layers in one way."
      )
    values.update(got.values)
    status = "reshaped" if got.note else "taken"
    rows.append(Parameter(source, f"{place.part}/{got.label}", status, array.shape, got.note))
  return parts


def _check_numbers(array: np.ndarray, source: str, folder: pathlib.Path, *, scanned: bool) -> None:
  kind = array.dtype.name
  if kind not in ("float32", "float64", "float16", "bfloat16"):
    raise UserError(
      f"{folder}: {source} holds {kind}, expected floating-point numbers. Is this a T5 encoder?"
    )
  if scanned and array.ndim < 2:
    raise UserError(f"{folder}: {source} has shape {array.shape}, expected an axis of layers as its second.")
  if not is_finite(array):
    raise UserError(
      f"{folder}: {source} holds NaN or infinity (in float32). Use a checkpoint from before training diverged."
    )


def _resize(values: dict[str, np.ndarray], rows: list[Parameter], vocab_size: int) -> None:
  table = values["embedding"]
  values["embedding"] = vocabulary_rows.resized(table, vocab_size)
  if note := vocabulary_rows.note(table.shape[0], vocab_size):
    rows[:] = [row._replace(status="reshaped", note=note) for row in rows]


def _check_sides(parts: Parts, checkpoint: pathlib.Path) -> None:
  for part in PARTS:
    sides = {side for side, held in parts if held == part}
    if None in sides and len(sides) > 1:
      raise UserError(
        f"{checkpoint}: {part} is there for both sides and for one of them; expected either {part} or "
        f"left_{part} and right_{part}."
      )
    if not sides and part != "projection_layer":
      raise UserError(f"{checkpoint}: missing {part}. Is the checkpoint whole, and of a T5 encoder?")
    if len(sides) == 1 and None not in sides and part != "projection_layer":
      other = "right" if sides == {"query"} else "left"
      raise UserError(f"{checkpoint}: missing {other}_{part}, the other side's. Is the checkpoint whole?")


def _tower(parts: Parts, side: Side, left: list[Parameter], checkpoint: pathlib.Path) -> ForeignTower:
  params: dict[str, Any] = {}
  flat: dict[str, np.ndarray] = {}
  rows: list[Parameter] = []
  for part in PARTS:
    held = parts.get((None, part)) or parts.get((side, part))
    if held is None:
      continue
    for name, value in held[0].items():
      flat[f"{part}/{name}"] = value
      *modules, leaf = f"{part}/{name}".split("/")
      node = params
      for module in modules:
        node = node.setdefault(module, {})
      node[leaf] = value
    rows += held[1]
  spec = t5x_architecture.tower_spec(flat, checkpoint)
  return ForeignTower(spec, params, TextSpec(), ParameterReport([*rows, *left]))


def _left_groups(leaves: Leaves) -> list[Parameter]:
  """Returns one line for all of the optimizer's state, and one for each other group that is no parameters."""
  groups = Counter(name.partition("/")[0] for name in leaves.by_name if not name.startswith(TARGET))
  kinds = {group: "optimizer state" if group == STATE else "not parameters" for group in groups}
  return [
    Parameter(f"{group}/*", "", "left", (), f"{kinds[group]}, {count} array{'s' if count > 1 else ''}")
    for group, count in sorted(groups.items())
  ]
