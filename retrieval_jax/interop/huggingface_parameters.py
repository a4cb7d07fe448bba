"""From tensors under Hugging Face's names to parameters under ours, and back."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from retrieval_jax.errors import UserError
from retrieval_jax.interop import vocabulary_rows
from retrieval_jax.interop.report import Parameter, ParameterReport
from retrieval_jax.interop.tensor_files import TensorFiles, few

TOKEN_TABLE: Final = "token_embedder/embedding"


class Pair(NamedTuple):
  """One parameter on both sides. theirs: without the prefix of a model with a head. shape: theirs.

  transposed: ours is the transpose (a linear map: torch keeps [out, in], we [in, out]).
  """

  theirs: str
  ours: str
  shape: tuple[int, ...]
  transposed: bool = False


class Family(NamedTuple):
  """What the reader must know of a family's files beside the pairs.

  prefixes: that a model with a head puts before its encoder's names. own: matches the names of the encoder, so that
  one that no pair has is an error, not a leftover. left: pattern -> why it is left behind. aliases: other names of a
  tensor, which count where the first is missing.
  """

  prefixes: Sequence[str]
  own: str
  left: Mapping[str, str]
  aliases: Mapping[str, str]


def take(
  tensors: TensorFiles, pairs: Sequence[Pair], family: Family, *, vocab_size: int | None
) -> tuple[dict[str, Any], ParameterReport]:
  """Returns the nested float32 parameters, and what became of every tensor.

  vocab_size: the rows that the token table is to have: zeros are added below, or rows cut. None: as in the file.

  Raises: UserError if tensors are missing, of another shape, or if the encoder has tensors that no pair names.
  """
  prefix, names = _ours_by_name(tensors, pairs, family)
  missing = [pair.theirs for pair in pairs if pair.theirs not in names]
  left, unexpected = [], []
  used = {names[pair.theirs] for pair in pairs if pair.theirs in names}
  for name in tensors:
    if name in used:
      continue
    bare = name.removeprefix(prefix)
    reason = next((why for pattern, why in family.left.items() if re.fullmatch(pattern, bare)), None)
    if reason is None and re.match(family.own, bare):
      unexpected.append(name)
    left.append(Parameter(name, "", "left", tensors.shape(name), reason or "no part of the encoder"))
  if missing or unexpected:
    raise UserError(
      f"{tensors.folder}: not the tensors that config.json describes: unexpected {few(sorted(unexpected))}, "
      f"missing {few(missing)}. Check that config.json belongs to these weights."
    )
  _check_shapes(tensors, pairs, names, vocab_size=vocab_size)
  params: dict[str, Any] = {}
  lines = []
  for pair in pairs:
    name = names[pair.theirs]
    value, line = _take_one(tensors, name, pair, vocab_size=vocab_size)
    put(params, pair.ours, value)
    lines.append(line)
  return params, ParameterReport([*lines, *left])


def give(params: Mapping[str, Any], pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
  """Returns the tensors of `pairs` from nested parameters, float32 and in Hugging Face's layout.

  Raises: UserError if a parameter is missing, left over, or of another shape than the architecture's.
  """
  flat = dict(flatten(params))
  missing = [pair.ours for pair in pairs if pair.ours not in flat]
  left_over = sorted(set(flat) - {pair.ours for pair in pairs})
  if missing or left_over:
    raise UserError(
      f"the tower's parameters are not those of its architecture: left over {few(left_over)}, missing {few(missing)}."
    )
  tensors = {}
  for pair in pairs:
    array = np.asarray(flat[pair.ours], np.float32)
    array = np.ascontiguousarray(array.T if pair.transposed else array)
    if array.shape != pair.shape:
      raise UserError(f"{pair.ours}: as {pair.theirs} its shape is {array.shape}, expected {pair.shape}.")
    tensors[pair.theirs] = array
  return tensors


def put(params: dict[str, Any], path: str, value: np.ndarray) -> None:
  """Puts `value` into the nested dictionary at a path such as "encoder/encoder_norm/scale"."""
  *modules, leaf = path.split("/")
  for module in modules:
    params = params.setdefault(module, {})
  params[leaf] = value


def flatten(params: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
  """Yields (path, array) of every parameter of a nested dictionary."""
  for name, value in params.items():
    if isinstance(value, Mapping):
      yield from flatten(value, f"{prefix}{name}/")
    else:
      yield f"{prefix}{name}", value


def linear(theirs: str, ours: str, size: tuple[int, int], *, bias: bool) -> Iterable[Pair]:
  """Yields the kernel and perhaps the bias of a linear map of size (in, out)."""
  yield Pair(f"{theirs}.weight", f"{ours}/kernel", (size[1], size[0]), transposed=True)
  if bias:
    yield Pair(f"{theirs}.bias", f"{ours}/bias", (size[1],))


def layer_norm(theirs: str, ours: str, size: int, *, bias: bool) -> Iterable[Pair]:
  """Yields the scale and perhaps the bias of a layer norm."""
  yield Pair(f"{theirs}.weight", f"{ours}/scale", (size,))
  if bias:
    yield Pair(f"{theirs}.bias", f"{ours}/bias", (size,))


def _ours_by_name(tensors: TensorFiles, pairs: Sequence[Pair], family: Family) -> tuple[str, dict[str, str]]:
  """Returns the prefix, and pair name -> the name in the file."""
  spelling = {_modern(name): name for name in tensors}
  for other, name in family.aliases.items():
    for prefix in ("", *family.prefixes):
      if prefix + other in spelling:
        spelling.setdefault(prefix + name, prefix + other)

  def found(prefix: str) -> dict[str, str]:
    return {pair.theirs: spelling[prefix + pair.theirs] for pair in pairs if prefix + pair.theirs in spelling}

  prefix = max(("", *family.prefixes), key=lambda prefix: len(found(prefix)))
  return prefix, found(prefix)


def _modern(name: str) -> str:
  """Layer norms of the first BERT checkpoints are called gamma and beta."""
  return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))


def _check_shapes(
  tensors: TensorFiles, pairs: Sequence[Pair], names: Mapping[str, str], *, vocab_size: int | None
) -> None:
  for pair in pairs:
    got = tensors.shape(names[pair.theirs])
    if got == pair.shape:
      continue
    if pair.ours == TOKEN_TABLE and got[1:] == pair.shape[1:]:
      if vocab_size is None:
        raise UserError(
          f"{tensors.folder}: the token table {pair.theirs} has {got[0]:,} rows, but config.json says vocab_size "
          f"{pair.shape[0]:,}. Give vocab_size={got[0]} or vocab_size={pair.shape[0]} to say which it is to have."
        )
      continue
    raise UserError(
      f"{tensors.folder}: {names[pair.theirs]} has the shape {got}, but config.json asks for {pair.shape}. "
      "Check that config.json belongs to these weights."
    )


def _take_one(
  tensors: TensorFiles, name: str, pair: Pair, *, vocab_size: int | None
) -> tuple[np.ndarray, Parameter]:
  tensor = tensors[name]
  note = "transposed" if pair.transposed else ""
  value = tensor.T if pair.transposed else tensor
  if pair.ours == TOKEN_TABLE and vocab_size is not None:
    value = vocabulary_rows.resized(tensor, vocab_size)
    note = vocabulary_rows.note(tensor.shape[0], vocab_size)
  status = "reshaped" if note else "taken"
  return np.ascontiguousarray(value), Parameter(name, pair.ours, status, tensor.shape, note)
