"""The recipe of a training of label classifiers: its parts, what it needs, and what a checkpoint of it says."""

import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from retrieval_jax.batching.base import Batcher, Plan
from retrieval_jax.checkpoints import Checkpoints
from retrieval_jax.classifier_batches import ClassifierBatches
from retrieval_jax.classifier_losses import ClassifierLoss
from retrieval_jax.classifier_state import bytes_needed, padded_rows
from retrieval_jax.classifier_step import ClassifierStepOptions
from retrieval_jax.classifiers import (
  check_same_corpus,
  check_same_encoder,
  corpus_identity,
  encoder_identity,
)
from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.label_unions import LabelUnions, bucket, rows_of_examples
from retrieval_jax.negative_options import NegativeOptions
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.recipe import described
from retrieval_jax.searchers import DenseSearcher
from retrieval_jax.sparse_optimizers import SparseOptimizer
from retrieval_jax.training_plan import texts_of

# What a resumed training may have otherwise, and is told of.
_SETTINGS = (
  "task_fingerprint",
  "train_steps",
  "batcher",
  "batch_size",
  "hard_negatives",
  "point_dropout",
  "seed",
)


class ClassifierRecipe(NamedTuple):
  """What is trained and how.

  dense: the frozen encoder. It runs once over points and labels; their embeddings are kept where it keeps them.
  data: one task; its training points and its corpus, whose passages are the labels. inputs: the encoder's.
  negatives: hard negatives that join the labels of a batch.
  cluster_on_devices: whether a batcher that clusters the points does it on the mesh instead of the CPU of process 0.
  """

  dense: DenseSearcher
  data: dataset.Source
  inputs: TextInputs
  loss: ClassifierLoss
  batcher: Batcher
  optimizer: SparseOptimizer
  negatives: NegativeOptions = NegativeOptions()
  step: ClassifierStepOptions = ClassifierStepOptions()
  cluster_on_devices: bool = False

  @property
  def partitioner(self) -> Partitioner:
    """That of the encoder."""
    return self.dense.encoder.partitioner

  @property
  def embed_dim(self) -> int:
    """The length of an embedding and of a classifier."""
    return self.dense.encoder.model.embed_dim

  def load(self) -> RetrievalData:
    """Returns the data, checked: they have the hard negatives that are asked for.

    Raises: UserError for parts that do not fit each other or the data.
    """
    self.step.check()
    self.negatives.check_number()
    if self.negatives.refresh is not None:
      raise UserError(
        "NEGATIVE_REFRESH mines with the model that is being trained, and here the encoder is not. Leave it out, and mine "
        "once: python -m retrieval_jax.mine, then --gin.HARD_NEGATIVES_PATH=..."
      )
    self.partitioner.check_batch_size(self.batcher.batch_size)
    data = dataset.load(self.data, self.inputs, hard_negatives=self.negatives.path)
    self.negatives.check(data)
    return data

  def plan(self, data: RetrievalData, seed: int) -> Plan:
    """Returns the batcher's plan for the data's points with labels."""
    return self.batcher.plan(num_examples=data.num_examples, seed=seed, texts=lambda: texts_of(data))

  def batches(self, data: RetrievalData, plan: Plan, seed: int) -> ClassifierBatches:
    """Returns what makes the batches; encodes the points unless their embeddings are kept."""
    rows = padded_rows(data.passages.num_rows)
    unions = LabelUnions(data, self.dense.queries(data), rows, seed, self.negatives.per_query)
    mesh = self.partitioner.mesh if self.cluster_on_devices else None
    return ClassifierBatches(unions, self.batcher, plan, mesh=mesh)

  def manifest(self, data: RetrievalData, *, seed: int, total_steps: int) -> dict[str, Any]:
    """Returns what a checkpoint is a state of, besides its arrays."""
    return {
      **encoder_identity(self.dense.encoder),
      **corpus_identity(data),
      "checkpoint": self.dense.checkpoint,
      "task": data.name,
      "split": data.split,
      "points": data.num_examples,
      "task_fingerprint": data.fingerprint,
      "train_steps": total_steps,
      "batcher": described(self.batcher),
      "batch_size": self.batcher.batch_size,
      "hard_negatives": self.negatives.per_query,
      "point_dropout": self.step.dropout_rate,
      "seed": seed,
    }

  def describe(self, data: RetrievalData, plan: Plan, *, keep: int) -> str:
    """Returns in words what is trained on what, and the bytes that it needs. keep: checkpoints that are kept."""
    num_labels, devices = data.passages.num_rows, self.partitioner.mesh.devices.size
    weights, state = bytes_needed(num_labels, self.embed_dim, self.optimizer)
    result = 4 * num_labels * self.embed_dim
    points = 4 * data.queries.num_rows * self.embed_dim
    slots = (
      f", with {len(self.optimizer.slots)} slots of the optimizer {_size(state)}" if state > weights else ""
    )
    labels = data.relevance.counts[data.examples]
    lines = [
      f"encoder: {self.dense.checkpoint}, frozen",
      f"{data.name}/{data.split}: {data.num_examples:,} points with {labels.mean():.2f} labels on average (at most "
      f"{labels.max()}), {num_labels:,} labels",
      f"classifiers: {num_labels:,} x {self.embed_dim} float32 = {_size(result)}; in training padded to "
      f"{padded_rows(num_labels):,} rows, {_size(weights)}{slots}; {_size(-(-state // devices))} on each of {devices} {jax.devices()[0].platform} devices",
      f"disk: embeddings {_size(points + result)}, {keep + 1} checkpoints of {_size(state)}, the result {_size(result)}",
      self._describe_batch(data, plan),
    ]
    return "\n".join(lines)

  def _describe_batch(self, data: RetrievalData, plan: Plan) -> str:
    """Returns in words what the first batch is."""
    rows = rows_of_examples(data, self.batcher.rows(plan, 0))
    positives = data.relevance.positives(rows)
    hard = self.negatives.per_query * len(rows)
    count = len(np.unique(positives[positives >= 0]))
    columns = bucket(min(count + hard, data.passages.num_rows))
    added = f" and up to {hard:,} hard negatives" if hard else ""
    return (
      f"batch {len(rows):,} points, {self.batcher.steps_per_epoch(plan):,} steps an epoch; the first has {count:,} different "
      f"labels{added}, padded to {columns:,}: {_size(4 * len(rows) * columns)} of scores"
    )


def check_resume(
  folder: pathlib.Path, saved: Checkpoints, data: RetrievalData, manifest: Mapping[str, Any]
) -> None:
  """Raises UserError where the newest checkpoint is of another encoder or corpus; says what else is not as it was."""
  for step in reversed(saved.steps()):
    try:
      before = saved.manifest(step)
    except (
      Exception
    ):  # Orbax raises many types on damaged files; restore_newest names it and takes an older step
      continue
    check_same_encoder(folder, before, manifest)
    check_same_corpus(folder, before, data)
    for name in _SETTINGS:
      if before.get(name) != manifest[name] and jax.process_index() == 0:
        print(f"warning: resuming with {name} {manifest[name]!r}, was {before.get(name)!r}", file=sys.stderr)
    return


def _size(count: int | np.integer) -> str:
  """Returns a number of bytes in words, such as "1.2 GB"."""
  value = float(count)
  for unit in ("bytes", "kB", "MB"):
    if value < 1000:
      return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
    value /= 1000
  return f"{value:.1f} GB"
