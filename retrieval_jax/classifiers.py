"""Label classifiers (NGAME's module M2) as files: a unit vector for each passage, and which encoder and corpus they go with."""

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Float

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.embedding_writer import Manifest, writing
from retrieval_jax.embeddings import Layout, ShardedEmbeddings, open_embeddings, read_record
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.parameter_digest import parameter_digest
from retrieval_jax.scoring import EPSILON

FOLDER: Final = "classifiers"
_STEP: Final = re.compile(r"step_(\d+)")
# What decides which vectors belong together: queries of another encoder, or another corpus, would meet wrong ones.
_ENCODER: Final = ("encoder_parameters", "encoder_model")
_CORPUS: Final = "passages_fingerprint"


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
  """Returns the rows at unit length, float32; a row of zeros stays one (as scoring.l2_normalize has it)."""
  rows = np.asarray(rows, np.float32)
  return rows / np.sqrt(np.sum(rows * rows, axis=1, keepdims=True) + np.float32(EPSILON))


def step_folder(folder: pathlib.Path, step: int) -> pathlib.Path:
  """Returns MODEL_DIR/classifiers/step_<n> of the folder MODEL_DIR/classifiers."""
  return folder / f"step_{step}"


def saved_steps(folder: pathlib.Path) -> list[int]:
  """Returns the steps of which MODEL_DIR/classifiers holds whole classifiers, ascending."""
  if not folder.is_dir():
    return []
  matches = [_STEP.fullmatch(path.name) for path in folder.iterdir()]
  return sorted(int(m[1]) for m in matches if m and _is_whole(folder / m[0]))


def load_classifiers(model_dir: str | pathlib.Path, step: int | None = None) -> LabelClassifiers:
  """Returns the classifiers of MODEL_DIR, memory-mapped: those of `step`, or of the newest step that is whole.

  Raises: UserError if there are none, or none of that step.

  Example: `load_classifiers("/tmp/run").weights[0]`.
  """
  folder = pathlib.Path(model_dir).expanduser().absolute() / FOLDER
  steps = saved_steps(folder)
  if not steps:
    raise UserError(
      f"{folder}: no trained classifiers here. Train them with python -m retrieval_jax.train_classifiers "
      f"--gin.MODEL_DIR={model_dir}: they are written at the end of the training."
    )
  if step is not None and step not in steps:
    raise UserError(f"{folder}: no classifiers of step {step}; there are those of {steps}.")
  found = steps[-1] if step is None else step
  own = step_folder(folder, found)
  record = read_record(own)
  if record is None:
    raise UserError(f"{own}: its manifest.json vanished while it was read. Try again.")
  return LabelClassifiers(open_embeddings(own), found, own, record)


def save_classifiers(
  folder: pathlib.Path,
  blocks: Callable[[range], Float[np.ndarray, "r d"]],
  *,
  ids: Sequence[str],
  manifest: Manifest,
) -> None:
  """Writes the classifiers shard by shard at unit length; shards that are there already are kept.

  blocks: rows -> their vectors, of any length above 0. ids: of the corpus's rows. manifest: of `classifier_manifest`.

  Raises: UserError for a vector that is not finite, and where the disk refuses.
  """
  with writing(folder, manifest) as writer:
    for number in writer.missing():
      span = writer.layout.span(number)
      rows = unit_rows(blocks(span))
      bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
      if len(bad):
        row = span.start + int(bad[0])
        raise UserError(
          f"the classifier of passage {ids[row]!r} (row {row}) is not finite; nothing of it was written."
        )
      writer.write(number, rows, ids[span.start : span.stop])


def classifier_manifest(of: Mapping[str, Any], layout: Layout, note: Mapping[str, Any]) -> Manifest:
  """Returns the manifest of a folder of classifiers. of: encoder_identity, corpus_identity and what the training was."""
  return Manifest({"holds": FOLDER, **of}, layout, note)


def _is_whole(folder: pathlib.Path) -> bool:
  record = read_record(folder)
  if record is None or record.get("holds") != FOLDER:
    return False
  try:
    open_embeddings(folder)
  except UserError:
    return False
  return True
