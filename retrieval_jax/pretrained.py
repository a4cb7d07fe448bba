"""The weights that a training starts from: whose they are, whether they fit, and what became of each."""

import pathlib
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
from jaxtyping import PyTree

from retrieval_jax.errors import UserError
from retrieval_jax.interop import sources, tensor_files
from retrieval_jax.interop.foreign import ForeignModel
from retrieval_jax.interop.report import ParameterReport
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.models.tower import Tower
from retrieval_jax.portable import encoder_spec

CHECKSUM: Final = "#sha256="
Read = Callable[[str, int | None], ForeignModel]


class Pretrained(NamedTuple):
  """Weights in somebody's files.

  path: a T5X checkpoint, a Hugging Face or sentence-transformers folder, or a MODEL_DIR of retrieval_jax; local,
    `package:NAME/rest`, gs://... or a hub name. None: no weights, start from random numbers. "#sha256=..." behind it is
    the sum of the folder's model.safetensors, which is compared.
  resize_vocabulary: whether a token table of another number of rows is fitted to the model's: rows of zeros added
    (32,100 -> 32,128) or the last rows cut. False: a UserError names both numbers.
  passage_path: the weights of the passage tower, where they lie elsewhere than the query tower's.
  """

  path: str | None
  resize_vocabulary: bool = False
  passage_path: str | None = None

  def folder(self) -> pathlib.Path:
    """Returns the local folder. Raises: UserError when there is none."""
    if self.path is None:
      raise UserError("INITIAL_CHECKPOINT_PATH is not set: there are no pretrained weights.")
    return sources.locate(self.source)

  @property
  def source(self) -> str:
    """The path without its checksum."""
    return str(self.path).partition(CHECKSUM)[0]

  @property
  def where(self) -> str:
    """The paths, for messages."""
    return self.source if self.passage_path is None else f"{self.source} and {self.passage_path}"

  def overlay(self, model: TowerPair, params: PyTree[Any], read: Read) -> dict[str, Any]:
    """Returns `params` with the weights of the files in their places, as numpy, and prints in one line what was taken.

    params: the model's tree, of arrays or of their shapes alone. read: (source, vocab_size) -> the model there.

    Raises: UserError for an architecture, a shape or a vocabulary that differs.
    """
    foreign, where = self._read(model, read), self.where
    check_architecture(model, foreign, where)
    passage = foreign.query if foreign.passage is None else foreign.passage
    try:
      filled = model.with_pretrained(params, foreign.query.params, passage.params)
    except UserError as error:
      raise UserError(f"{where}: {error}") from None
    if jax.process_index() == 0:
      fresh = sorted({name for name in params if filled[name] is params[name]})
      rest = f"; starts from random numbers: {', '.join(fresh)}" if fresh else ""
      reports = [t.report for t in foreign if t is not None]
      summary = ParameterReport([p for report in reports for p in report]).summary
      print(f"pretrained: {where}: {summary}{rest}", file=sys.stderr)
      resized = {
        p.note for report in reports for p in report if p.note and p.target.startswith("token_embedder")
      }
      for note in sorted(resized) if self.resize_vocabulary else ():
        print(f"note: token table: {note}", file=sys.stderr)
    return filled

  def _read(self, model: TowerPair, read: Read) -> ForeignModel:
    checksum = str(self.path).partition(CHECKSUM)[2]
    if checksum:
      tensor_files.check_sha256(self.folder() / "model.safetensors", checksum)
    rows = None
    if self.resize_vocabulary:
      sizes = {t.vocab_size for t in (model.query_tower, model.passage_tower) if isinstance(t, Tower)}
      if len(sizes) != 1:
        raise UserError(f"RESIZE_VOCABULARY needs towers of one vocabulary, got sizes {sorted(sizes)}.")
      rows = sizes.pop()
    foreign = read(self.source, rows)
    if self.passage_path is None:
      return foreign
    other = read(self.passage_path, rows)
    return ForeignModel(foreign.query, other.query if other.passage is None else other.passage)


def check_architecture(model: TowerPair, foreign: ForeignModel, path: str) -> None:
  """Raises UserError for every field that no shape tells and that differs: heads, epsilons, activations.

  Pooling and normalisation may be chosen anew: where the files say another, a line on stderr does.

  Example: `check_architecture(model, reading.read(path), path)`.
  """
  sides = [("query", model.query_tower, foreign.query), ("passage", model.passage_tower, foreign.passage)]
  if model.query_tower == model.passage_tower and foreign.passage is None:
    del sides[1:]
  faults = []
  for side, tower, source in sides:
    theirs = foreign.query if source is None else source
    if not isinstance(tower, Tower):
      raise UserError(
        f"{path}: pretrained weights are for towers of text encoders, not {type(tower).__name__}."
      )
    ours = encoder_spec(tower.encoder)  # pyright: ignore[reportArgumentType]  (a tower of ours has one of the two)
    if ours.family != theirs.spec.encoder.family:
      faults.append(
        f"{side} tower: the files hold a {theirs.spec.encoder.family} encoder, the model has a {ours.family} one"
      )
      continue
    for name, value in theirs.spec.encoder.fields.items():
      if ours.fields[name] != value:
        faults.append(f"{side} tower: {name} is {value!r} in the files, {ours.fields[name]!r} in the model")
    head = theirs.spec.projection_activation
    both = theirs.spec.projection_dim is not None and tower.projection_dim is not None
    if both and head != tower.projection_activation:
      faults.append(
        f"{side} tower: projection_activation is {head!r} in the files, {tower.projection_activation!r} in the model"
      )
    if theirs.spec.vocab_size != tower.vocab_size:
      faults.append(
        f"{side} tower: the token table has {theirs.spec.vocab_size:,} rows in the files, {tower.vocab_size:,} in the "
        "model: set NUM_EMBEDDINGS to the files' number, or RESIZE_VOCABULARY = True to add rows of zeros or cut the last"
      )
    for name in ("pooling", "normalize"):
      said, own = getattr(theirs.spec, name), getattr(tower, name)
      if said != own and jax.process_index() == 0:
        print(f"note: {path}: {side} tower: {name} is {said!r} there, {own!r} in the model", file=sys.stderr)
  if faults:
    raise UserError(
      f"{path} does not fit the model:\n  "
      + "\n  ".join(dict.fromkeys(faults))
      + "\nChoose the models/ file that "
      "belongs to these weights, or set INITIAL_CHECKPOINT_PATH = None to start from random numbers."
    )
