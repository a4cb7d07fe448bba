"""A retriever: the dual encoder with the inputs it reads and the weights it starts from. What a checkpoint is a state of."""

import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from jaxtyping import Array, PyTree

from retrieval_jax.checkpoints import Checkpoints
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.train_state import abstract_with


class Retriever(NamedTuple):
  """model: the towers. inputs: vocabulary, lengths and prefixes. pretrained: () -> tower parameters, or None.

  The three belong together: a checkpoint means nothing without the vocabulary and prefixes it was trained with.
  """

  model: TowerPair
  inputs: TextInputs
  pretrained: Callable[[], Mapping] | None = None


def check_vocabulary(retriever: Retriever) -> None:
  """Raises UserError when the vocabulary has ids that the token table of a tower lacks: they would be clipped."""
  words = retriever.inputs.vocabulary.vocab_size
  for side, tower in (("query", retriever.model.query_tower), ("passage", retriever.model.passage_tower)):
    if words > tower.vocab_size:
      raise UserError(
        f"the vocabulary has {words:,} entries, the {side} tower's token table {tower.vocab_size:,} rows. "
        "Use the vocabulary that belongs to the model, or give the tower as many rows."
      )


def initial_params(retriever: Retriever, partitioner: Partitioner, *, seed: int) -> PyTree[Array]:
  """Returns the parameters before training, on the mesh: initialised from seed, then overlaid with the pretrained."""
  check_vocabulary(retriever)
  model = retriever.model
  abstract = jax.eval_shape(model.init, jax.random.key(seed))
  shardings = partitioner.shardings(abstract, model.logical_axes())
  params = jax.jit(model.init, out_shardings=shardings)(jax.random.key(seed))
  if retriever.pretrained is None:
    return params
  return jax.device_put(model.with_pretrained(params, retriever.pretrained()), shardings)


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
  check_vocabulary(retriever)
  with Checkpoints(folder, read_only=True) as checkpoints:
    params, found = checkpoints.restore_params(target, step=step)
    trained_with = checkpoints.manifest(found).get("vocabulary")
  if trained_with not in (None, retriever.inputs.vocabulary.fingerprint):
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
  if trained or step is not None or retriever.pretrained is None:
    params, found = checkpoint_params(retriever, partitioner, folder, step=step)
    return params, found, str(folder / f"checkpoint_{found}")
  where = "has no checkpoint" if folder.is_dir() else "does not exist"
  print(f"MODEL_DIR={folder} {where}: taking the pretrained weights as they are", file=sys.stderr)
  return initial_params(retriever, partitioner, seed=0), 0, "pretrained"
