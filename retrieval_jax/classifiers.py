"""Label classifiers (NGAME's module M2) as files: a unit vector for each passage, and which encoder and corpus they go with."""

import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.embedding_writer import Manifest, writing
from retrieval_jax.embeddings import Layout, ShardedEmbeddings, open_embeddings, read_record
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.parameter_digest import parameter_digest

FOLDER: Final = "classifiers"
_STEP: Final = re.compile(r"step_(\d+)")
# What decides which vectors belong together: queries of another encoder, or another corpus, would meet wrong ones.
_ENCODER: Final = ("encoder_parameters", "encoder_model")
_CORPUS: Final = "passages_fingerprint"
_REPAIR: Final = "python -m retrieval_jax.train_classifiers with the flags of its training writes it again from a checkpoint of that step."


class LabelClassifiers(NamedTuple):
  """The trained vectors of a corpus; the score of a query is its cosine with each.

  weights: [c, d] float32 of unit length, memory-mapped, row i that of the corpus's row i.
  step: of the classifiers' own training. folder: MODEL_DIR/classifiers/step_<n>, readable by `open_embeddings` too.
  record: its manifest.json: the identity of the encoder and of the corpus, where they come from, how they were trained.
  """

  weights: ShardedEmbeddings
  step: int
  folder: pathlib.Path
  record: Mapping[str, Any]

  @property
  def passages_fingerprint(self) -> str:
    """The fingerprint of the corpus whose rows they are: `data.passages.fingerprint`."""
    return self.record[_CORPUS]

  def check_encoder(self, encoder: Encoder) -> None:
    """Raises UserError unless they were trained on this encoder's embeddings."""
    check_same_encoder(self.folder, self.record, encoder_identity(encoder))

  def check_corpus(self, data: RetrievalData) -> None:
    """Raises UserError unless they are those of the data's passages."""
    check_same_corpus(self.folder, self.record, data)


def encoder_identity(encoder: Encoder) -> dict[str, str]:
  """Returns what tells one encoder's embeddings from another's: hashes of its parameters and of its computation."""
  return dict(zip(_ENCODER, (parameter_digest(encoder.params), encoder.model.digest), strict=True))


def corpus_identity(data: RetrievalData) -> dict[str, str]:
  """Returns what tells one corpus from another: its texts, their order, and how the model reads them."""
  return {_CORPUS: data.passages.fingerprint}


def check_same_encoder(folder: pathlib.Path, saved: Mapping[str, Any], now: Mapping[str, str]) -> None:
  """Raises UserError unless the record `saved` of a folder is of the encoder `now`."""
  if any(saved.get(name) != now[name] for name in _ENCODER):
    raise UserError(
      f"{folder}: these classifiers were trained on the embeddings of {saved.get('checkpoint', 'another encoder')} "
      f"(parameters {saved.get(_ENCODER[0])}, model {saved.get(_ENCODER[1])}), and the encoder is now another one "
      f"({now[_ENCODER[0]]}, {now[_ENCODER[1]]}). Choose its "
      "checkpoint with --gin.STEP=..., or move the folder away and train classifiers anew."
    )


def check_same_corpus(folder: pathlib.Path, saved: Mapping[str, Any], data: RetrievalData) -> None:
  """Raises UserError unless the record `saved` of a folder is of the data's corpus."""
  if saved.get(_CORPUS) != data.passages.fingerprint:
    raise UserError(
      f"{folder}: these classifiers belong to the corpus {saved.get(_CORPUS)} of {saved.get('task', 'another task')}; "
      f"{data.name}/{data.split} has the corpus {data.passages.fingerprint} ({data.passages.num_rows:,} passages). A "
      "classifier knows no passage that it was not trained for: name a task of the same corpus."
    )


def unit_rows(rows: Float[np.ndarray, "r d"]) -> Float[np.ndarray, "r d"]:
  """Returns the rows at unit length, float32, however large or small their numbers; a row of zeros stays one."""
  rows = np.asarray(rows, np.float32)
  # By a power of 2 first, which rounds nothing: the squares of 1e20 would be infinite, and those of 1e-30 be 0.
  _, exponents = np.frexp(np.max(np.abs(rows), axis=1, keepdims=True, initial=0))
  rows = np.ldexp(rows, -exponents)
  squares = np.sum(rows * rows, axis=1, keepdims=True)
  return rows / np.sqrt(np.where(squares == 0, np.float32(1), squares))


def step_folder(folder: pathlib.Path, step: int) -> pathlib.Path:
  """Returns MODEL_DIR/classifiers/step_<n> of the folder MODEL_DIR/classifiers."""
  return folder / f"step_{step}"


def saved_steps(folder: pathlib.Path) -> list[int]:
  """Returns the steps of which MODEL_DIR/classifiers holds whole classifiers, ascending."""
  return [step for step in _steps(folder) if damage(step_folder(folder, step)) is None]


def load_classifiers(model_dir: str | pathlib.Path, step: int | None = None) -> LabelClassifiers:
  """Returns the classifiers of MODEL_DIR, memory-mapped: those of `step`, or of the newest step that is whole; a newer one
  that is damaged is named on stderr.

  Raises: UserError if there are none, none of that step, or if what is asked for is damaged.

  Example: `load_classifiers("/tmp/run").weights[0]`.
  """
  folder = pathlib.Path(model_dir).expanduser().absolute() / FOLDER
  steps = _steps(folder)
  if not steps:
    raise UserError(
      f"{folder}: no trained classifiers here. Train them with python -m retrieval_jax.train_classifiers "
      f"--gin.MODEL_DIR={model_dir}: they are written at the end of the training."
    )
  if step is not None and step not in steps:
    raise UserError(f"{folder}: no classifiers of step {step}; there are those of {saved_steps(folder)}.")
  skipped = []
  for found in [step] if step is not None else reversed(steps):
    own = step_folder(folder, found)
    fault = damage(own)
    record = read_record(own)
    if fault is None and record is not None:
      _warn_of_damage(skipped, own)
      return LabelClassifiers(open_embeddings(own), found, own, record)
    skipped.append(f"{own} is damaged ({fault})")
  whole = f" Whole are those of {others}." if (others := saved_steps(folder)) else ""
  raise UserError(f"{'; '.join(skipped)}.{whole} {_REPAIR}")


def damage(folder: pathlib.Path) -> str | None:
  """Returns in words why a folder step_<n> holds no whole classifiers; None if it does."""
  record = read_record(folder)
  if record is None:
    return "its manifest.json is missing or cannot be read"
  if record.get("holds") != FOLDER:
    return f"its manifest.json is not one of {FOLDER}"
  try:
    open_embeddings(folder)
  except UserError as error:
    return str(error).partition(":")[0]
  return None


def save_classifiers(
  folder: pathlib.Path,
  blocks: Callable[[range], Float[np.ndarray, "r d"]],
  *,
  ids: Sequence[str],
  manifest: Manifest,
) -> None:
  """Writes the classifiers shard by shard at unit length; shards that are there already are kept.

  blocks: rows -> their vectors, of any length above 0; asked for twice, as nothing is written before all were looked at.
  ids: of the corpus's rows. manifest: of `classifier_manifest`.

  Raises: UserError for a vector whose length is not a number above 0, and where the disk refuses.
  """
  layout = manifest.layout
  for span in map(layout.span, range(layout.num_shards)):
    _check_rows(folder, blocks(span), span, ids)
  with writing(folder, manifest) as writer:
    for number in writer.missing():
      span = writer.layout.span(number)
      writer.write(number, unit_rows(blocks(span)), ids[span.start : span.stop])


def classifier_manifest(of: Mapping[str, Any], layout: Layout, note: Mapping[str, Any]) -> Manifest:
  """Returns the manifest of a folder of classifiers. of: encoder_identity, corpus_identity and what the training was."""
  return Manifest({"holds": FOLDER, **of}, layout, note)


def _steps(folder: pathlib.Path) -> list[int]:
  """Returns the steps of which there is a folder, whole or not, ascending."""
  if not folder.is_dir():
    return []
  return sorted(int(m[1]) for m in (_STEP.fullmatch(path.name) for path in folder.iterdir()) if m)


def _warn_of_damage(skipped: Sequence[str], taken: pathlib.Path) -> None:
  if skipped and jax.process_index() == 0:
    print(
      f"warning: {'; '.join(skipped)}: the older {taken.name} is taken instead. {_REPAIR}", file=sys.stderr
    )


def _check_rows(
  folder: pathlib.Path, rows: Float[np.ndarray, "r d"], span: range, ids: Sequence[str]
) -> None:
  """Raises UserError for a row that has no direction: one that is not finite, whose length is not, or that is zeros.

  Scores of a row whose squares overflow were 0 in training: what it points at was never learnt.
  """
  with np.errstate(over="ignore", invalid="ignore"):
    squares = np.sum(np.square(rows, dtype=np.float32), axis=1)
  faults = (
    (~np.isfinite(rows).all(axis=1), "is not finite"),
    (~np.isfinite(squares), "has a length that is not finite in float32"),
    (~rows.any(axis=1), "is all zeros"),
  )
  for marked, fault in faults:
    if marked.any():
      row = span.start + int(np.flatnonzero(marked)[0])
      raise UserError(
        f"the classifier of passage {ids[row]!r} (row {row}) {fault}; {np.count_nonzero(marked):,} of these {len(rows):,} "
        f"are so, and nothing of {folder.name} was written. The training diverged: move {folder.parent} away and train anew "
        "with a lower LEARNING_RATE."
      )
