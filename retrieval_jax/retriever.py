"""A retriever: the dual encoder with the inputs it reads and the weights it starts from. What a checkpoint is a state of."""

import pathlib
import sys
from typing import NamedTuple

import jax
from jaxtyping import Array, PyTree

from retrieval_jax.checkpoints import Checkpoints
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.pretrained import Pretrained
from retrieval_jax.train_state import abstract_with


class Retriever(NamedTuple):
  """model: the towers. inputs: vocabulary, lengths and prefixes. pretrained: the weights to start from, if any.

  The three belong together: a checkpoint means nothing without the vocabulary and prefixes it was trained with.
  """

  model: TowerPair
  inputs: TextInputs
  pretrained: Pretrained | None = None

  @property
  def start(self) -> Pretrained | None:
    """The weights to start from, or None to start from random numbers."""
    return None if self.pretrained is None or self.pretrained.path is None else self.pretrained


def check_vocabulary(retriever: Retriever) -> None:
  """Raises UserError when the vocabulary has ids that the token table of a tower lacks: they would be clipped."""
  inputs = retriever.inputs
  for side, tower, vocabulary in (
    ("query", retriever.model.query_tower, inputs.query_side.vocabulary),
    ("passage", retriever.model.passage_tower, inputs.passage_side.vocabulary),
  ):
    words = vocabulary.vocab_size
    if isinstance(tower, Tower) and words > tower.vocab_size:
      raise UserError(
        f"the vocabulary has {words:,} entries, the {side} tower's token table {tower.vocab_size:,} rows. "
        "Use the vocabulary that belongs to the model, or give the tower as many rows."
      )


def announce(inputs: TextInputs) -> None:
  """Prints once, on process 0, how the model reads text: what must be the same in training, encoding and evaluation."""
  if jax.process_index() == 0:
    said = ", ".join(f"{name} {value!r}" for name, value in inputs.describe().items())
    print(f"inputs: {said}", file=sys.stderr, flush=True)


def vocabulary_fingerprint(inputs: TextInputs) -> str:
  """Returns what tells vocabularies apart in a checkpoint's manifest: the queries', or both where there are two."""
  sides = [inputs.query_side.vocabulary.fingerprint, inputs.passage_side.vocabulary.fingerprint]
  return " ".join(dict.fromkeys(sides))


def model_manifest(retriever: Retriever) -> dict[str, object]:
  """Returns what a checkpoint's manifest says of its model: inputs, vocabulary and architecture."""
  return {
    "inputs": retriever.inputs.fingerprint,
    "vocabulary": vocabulary_fingerprint(retriever.inputs),
    "model": retriever.model.digest,
  }


def initial_params(retriever: Retriever, partitioner: Partitioner, *, seed: int) -> PyTree[Array]:
  """Returns the parameters before training, on the mesh: initialised from seed, then overlaid with the pretrained."""
  check_vocabulary(retriever)
  model = retriever.model
  abstract = jax.eval_shape(model.init, jax.random.key(seed))
  shardings = partitioner.shardings(abstract, model.logical_axes())
  start = retriever.start
  if start is not None and start.passage_path is None and start.is_own:
    params, step = _restored(retriever, abstract_with(abstract, shardings), start.folder(), step=None)
    if jax.process_index() == 0:
      print(f"pretrained: {start.path}, checkpoint {step}", file=sys.stderr)
    return params
  params = jax.jit(model.init, out_shardings=shardings)(jax.random.key(seed))
  return params if start is None else jax.device_put(start.overlay(model, params), shardings)


def checkpoint_params(
  retriever: Retriever, partitioner: Partitioner, folder: pathlib.Path, *, step: int | None = None
) -> tuple[PyTree[Array], int]:
  """Returns (parameters, step) of MODEL_DIR's checkpoint `step` (None: the newest); the mesh may be another one."""
  check_vocabulary(retriever)
  model = retriever.model
  abstract = jax.eval_shape(model.init, jax.random.key(0))
  target = abstract_with(abstract, partitioner.shardings(abstract, model.logical_axes()))
  if not folder.is_dir():
    raise UserError(f"MODEL_DIR={folder}: no such folder. Train first, or correct the path.")
  return _restored(retriever, target, folder, step=step)


def _restored(
  retriever: Retriever, target: PyTree[jax.ShapeDtypeStruct], folder: pathlib.Path, *, step: int | None
) -> tuple[PyTree[Array], int]:
  with Checkpoints(folder, read_only=True) as checkpoints:
    params, found = checkpoints.restore_params(target, step=step)
    trained_with = checkpoints.manifest(found).get("vocabulary")
  if trained_with not in (None, vocabulary_fingerprint(retriever.inputs)):
    raise UserError(
      f"{folder}: checkpoint {found} was trained with another vocabulary than the configured one (the file changed, or "
      "another was named). Its token ids would mean other words: give the vocabulary of the training."
    )
  return params, found


def evaluation_params(
  retriever: Retriever, partitioner: Partitioner, folder: pathlib.Path, *, step: int | None = None
) -> tuple[PyTree[Array], int, str]:
  """Returns (parameters, step, where they come from) for programs that read a model.

  The folder's checkpoints come first; a folder without any stands for the pretrained weights, step 0 ("zero-shot").
  Raises: UserError when there is neither.
  """
  trained = folder.is_dir() and any(folder.glob("checkpoint_*"))
  if trained or step is not None or retriever.start is None:
    params, found = checkpoint_params(retriever, partitioner, folder, step=step)
    return params, found, str(folder / f"checkpoint_{found}")
  where = "has no checkpoint" if folder.is_dir() else "does not exist"
  print(f"MODEL_DIR={folder} {where}: taking the pretrained weights as they are", file=sys.stderr)
  return initial_params(retriever, partitioner, seed=0), 0, "pretrained"
