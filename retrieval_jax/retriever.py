"""A retriever: the dual encoder with the inputs it reads and the weights it starts from; its parameters in a checkpoint."""

import json
import pathlib
import sys
from collections.abc import Mapping
from typing import NamedTuple

import jax
from jaxtyping import Array, PyTree

from retrieval_jax.checkpoints import Checkpoints
from retrieval_jax.data.bag_vocabulary import BagVocabulary
from retrieval_jax.data.text_inputs import SideInputs, TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.models.feature_bag import FeatureBagTower
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
    """The weights to start from, or None to start from random numbers.

    Raises: UserError for weights of the passage tower alone.
    """
    start = self.pretrained
    if start is None or start.path is None:
      if start is not None and start.passage_path is not None:
        raise UserError(
          f"PASSAGE_CHECKPOINT_PATH={start.passage_path} is set and INITIAL_CHECKPOINT_PATH is not: name the query "
          "tower's weights too."
        )
      return None
    return start


def check_inputs(retriever: Retriever) -> None:
  """Raises UserError when the inputs do not fit the towers: ids that a token table lacks, which would be clipped, or texts
  longer than an encoder has positions.

  Example: `check_inputs(Retriever(model, inputs))`.
  """
  inputs = retriever.inputs
  for side, tower, own in (
    ("query", retriever.model.query_tower, inputs.query_side),
    ("passage", retriever.model.passage_tower, inputs.passage_side),
  ):
    if isinstance(tower, FeatureBagTower):
      _check_bags(side, tower, own)
      continue
    if isinstance(own.vocabulary, BagVocabulary):
      raise UserError(
        f"the {side} tower reads text and {own.vocabulary!r} makes rows of feature bags: give it the vocabulary that belongs to "
        "its encoder."
      )
    words = own.vocabulary.vocab_size
    prefix = own.vocabulary.encode_ragged([own.prefix], length=own.length + 1)[0]
    if own.prefix and len(prefix) >= own.length:
      raise UserError(
        f"{side.upper()}_PREFIX={own.prefix!r} fills the {own.length} tokens of {side.upper()}_LENGTH, so that no text is "
        "left: shorten the one or raise the other."
      )
    if isinstance(tower.encoder, BertEncoder) and own.length > tower.encoder.max_positions:
      raise UserError(
        f"{side.upper()}_LENGTH={own.length}: the {side} tower has {tower.encoder.max_positions} positions. Lower it."
      )
    if words > tower.vocab_size:
      raise UserError(
        f"the vocabulary has {words:,} entries, the {side} tower's token table {tower.vocab_size:,} rows. "
        "Use the vocabulary that belongs to the model, or give the tower as many rows."
      )


def _check_bags(side: str, tower: FeatureBagTower, inputs: SideInputs) -> None:
  """Raises UserError unless the rows of ids have the columns that the tower cuts, and its tables have their ids."""
  vocabulary = inputs.vocabulary
  if not isinstance(vocabulary, BagVocabulary):
    raise UserError(
      f"the {side} tower reads feature bags and {vocabulary!r} makes tokens of text: give INPUTS a BagVocabulary "
      "(towers/feature_bag.gin)."
    )
  if inputs.prefix:
    raise UserError(
      f"{side.upper()}_PREFIX={inputs.prefix!r}: the {side} tower reads feature bags, which have no prefix. Leave it out."
    )
  needed, given = dict(vocabulary.tables), dict(tower.features)
  if [*needed] != [*given] or tower.columns != vocabulary.columns:
    raise UserError(
      f"the vocabulary has the features {', '.join(needed)} in {vocabulary.columns} columns, the {side} tower reads "
      f"{', '.join(given)} in {tower.columns}. Use the vocabulary that belongs to the model (MODEL_DIR/vocabulary)."
    )
  for name, rows in needed.items():
    if rows > given[name]:
      raise UserError(
        f"the vocabulary has {rows:,} rows of {name!r}, the {side} tower's table {given[name]:,}. Use the vocabulary that "
        "belongs to the model (MODEL_DIR/vocabulary), or give the tower as many rows."
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
    "computation": retriever.model.computation(),
  }


def check_computation(folder: pathlib.Path, saved: Mapping[str, object], now: Mapping[str, object]) -> None:
  """Raises UserError, with each difference, if two manifests are of models that compute other things of equal parameters.

  Example: `check_computation(folder, checkpoints.manifest(100), model_manifest(retriever))`.
  """
  before, after = saved.get("computation"), json.loads(json.dumps(now["computation"]))
  if not isinstance(before, Mapping) or before == after:
    return
  lines = [
    f"  {name}: was {before.get(name)!r}, is {after.get(name)!r}"
    for name in sorted({*before, *after})
    if before.get(name) != after.get(name)
  ]
  raise UserError(
    f"{folder} was trained with a model that computes something else of the same parameters:\n"
    + "\n".join(lines)
    + "\nGo on with the same (as its model.gin was written), or train in another MODEL_DIR from its weights: "
    f"INITIAL_CHECKPOINT_PATH={folder}."
  )


def checkpoint_params(
  retriever: Retriever, partitioner: Partitioner, folder: pathlib.Path, *, step: int | None = None
) -> tuple[PyTree[Array], int]:
  """Returns (parameters, step) of MODEL_DIR's checkpoint `step` (None: the newest); the mesh may be another one.

  Raises: UserError if there is none, or if it is of another architecture or vocabulary.

  Example: `checkpoint_params(retriever, partitioner(), pathlib.Path("/tmp/run"))`.
  """
  check_inputs(retriever)
  model = retriever.model
  abstract = jax.eval_shape(model.init, jax.random.key(0))
  target = abstract_with(abstract, partitioner.shardings(abstract, model.logical_axes()))
  if not folder.is_dir():
    raise UserError(f"MODEL_DIR={folder}: no such folder. Train first, or correct the path.")
  with Checkpoints(folder, read_only=True) as checkpoints:
    params, found = checkpoints.restore_params(target, step=step)
    manifest = checkpoints.manifest(found)
  check_computation(folder, manifest, model_manifest(retriever))
  if manifest.get("inputs") not in (None, retriever.inputs.fingerprint) and jax.process_index() == 0:
    print(
      f"note: {folder}: the lengths, prefixes or template are not those of the training (its model.gin)",
      file=sys.stderr,
    )
  trained_with = manifest.get("vocabulary")
  if trained_with not in (None, vocabulary_fingerprint(retriever.inputs)):
    raise UserError(
      f"{folder}: checkpoint {found} was trained with another vocabulary than the configured one (the file changed, or "
      "another was named). Its token ids would mean other words: give the vocabulary of the training."
    )
  return params, found
