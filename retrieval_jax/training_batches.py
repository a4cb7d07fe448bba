"""TrainingBatches: which batch comes at which step, and what makes the batches anew on the way."""

import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float
from tqdm import tqdm

from retrieval_jax import batch_artefacts, processes
from retrieval_jax.batch_artefacts import artefact, as_arrays, as_state, cluster_state, step_of
from retrieval_jax.batching.base import Batcher, Plan
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.hard_negatives import HardNegatives
from retrieval_jax.data.row_tokens import RowTokens
from retrieval_jax.embedding_bank import EmbeddingBank
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.mining import mine_negatives
from retrieval_jax.mining_options import MiningOptions
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.recipe import Recipe, described
from retrieval_jax.records import Batch
from retrieval_jax.searchers import DenseSearcher
from retrieval_jax.some_rows import SomeRows
from retrieval_jax.train_state import TrainState

OTHER_SEED = 2**32  # beyond all SEEDs: the estimation batches of no training are the batches of another
CLUSTERS, NEGATIVES, BANK = "clusters", "negatives", "bank"
SECONDS = "refresh_seconds"


class TrainingBatches:
  """The batches of a training: of step t a pure function of (seed, t, what the last refresh decided).

  A refresh happens between two steps and is written down once (batch_artefacts.py) before it is used. A checkpoint names
  what is in force, so a resumed run forms the very batches of the run that was stopped, whatever the machine's rounding
  would make of a second clustering.

  plan: the batcher's, as it is in force. bank: the embedding bank, of process 0 where there is one.

  Example:
    batches = TrainingBatches(recipe, data, plan, seed=0)
    batches.start(folder, partitioner, step=0, manifest={})
    batches.refresh(step, state); batch = batches.make(step); ...; batches.hold(step); batches.save(step + 1)
  """

  def __init__(self, recipe: Recipe, data: RetrievalData, plan: Plan, *, seed: int):
    recipe.clusters.check()
    if jax.process_count() > 1 and recipe.batcher.refreshes and recipe.clusters.on_devices:
      raise UserError(
        "CLUSTER_ON_DEVICES: several processes cannot cluster together. Leave it False: process 0 clusters on its cores."
      )
    if data.chosen is not None and recipe.negatives.refresh is not None:
      raise UserError(
        "NEGATIVE_REFRESH mines for queries, and TRAIN_EXAMPLES='pairs'. Leave TRAIN_EXAMPLES='queries', or NEGATIVE_REFRESH=None."
      )
    self._recipe, self._data, self.plan, self._seed = recipe, data, plan, seed
    self.bank: EmbeddingBank | None = None
    self._queries: Array | None = None
    self._estimation = _estimation(recipe, data, seed)
    # Several processes read the tokens of their own rows alone, when they place them.
    self._reading: dict[str, Any] = {"read": RowTokens} if jax.process_count() > 1 else {}
    self._in_force: dict[str, str | None] = {CLUSTERS: None, NEGATIVES: None}

  def make(self, step: int) -> Batch:
    """Returns the batch of a step (numpy; of several processes tokens that are read when they are placed)."""
    batcher, plan = self._recipe.batcher, self.plan
    batch = dataset.make_batch(
      self._data,
      batcher.rows(plan, step),
      seed=self._seed,
      epoch=batcher.epochs(plan, step),
      hard_negatives=self._recipe.negatives.per_query,
      **self._reading,
    )
    if self._estimation is None:
      return batch
    other, plan = self._estimation
    rows, epochs = other.rows(plan, step), other.epochs(plan, step)
    estimation = dataset.make_batch(self._data, rows, seed=plan.seed, epoch=epochs, **self._reading)
    return batch._replace(estimation=estimation)

  def describe(self, total_steps: int) -> list[str]:
    """Returns the lines to print at the start: where clusters come from, and the bytes that takes; none for other batches."""
    batcher, options = self._recipe.batcher, self._recipe.clusters
    if not batcher.refreshes:
      return []
    if self._recipe.has_bank:
      shape = self._data.num_examples, self._recipe.retriever.model.embed_dim
      size = shape[0] * shape[1] * np.dtype(options.dtype).itemsize
      place = f"{options.path or f'MODEL_DIR/{batch_artefacts.FOLDER}'}, and as much beside each checkpoint"
      source = f"a bank of {shape[0]:,} x {shape[1]} {options.dtype}: {size / 1e6:,.0f} MB in {place}"
    else:
      source = "all queries, encoded at each refresh"
    lines = [f"batches: {described(batcher)}; clusters by {source}"]
    per_epoch = batcher.steps_per_epoch(self.plan)
    if not any(batcher.refresh_due(self.plan, step) for step in range(0, total_steps, per_epoch)):
      lines.append(
        f"warning: TRAIN_STEPS={total_steps:,} are {total_steps / per_epoch:.1f} epochs, and the first clusters come later: all "
        "batches are random. Train longer, or let CLUSTER_SIZES (CURRICULUM_START) begin earlier."
      )
    return lines

  def start(
    self, folder: pathlib.Path, partitioner: Partitioner, *, step: int, manifest: Mapping[str, Any]
  ) -> None:
    """Takes up the batches at a step. manifest: the checkpoint's, from which on the training goes; {} at step 0.

    Raises: UserError if what the checkpoint names is not there.
    """
    self._folder, self._partitioner = folder / batch_artefacts.FOLDER, partitioner
    if step == 0 and jax.process_index() == 0:
      batch_artefacts.clear(self._folder)
    if self._recipe.has_bank and jax.process_index() == 0:
      options = self._recipe.clusters
      place = self._folder if options.path is None else pathlib.Path(options.path).expanduser()
      embed_dim = self._recipe.retriever.model.embed_dim
      self.bank = EmbeddingBank(place, self._data.num_examples, embed_dim, dtype=options.dtype)
    saved = manifest.get("batches")
    if not isinstance(saved, Mapping):
      return
    if self._recipe.batcher.refreshes and saved.get(CLUSTERS) is not None:
      self._resume_clusters(self._folder / saved[CLUSTERS])
    if self._recipe.negatives.refresh is not None and saved.get(NEGATIVES) is not None:
      self._take_negatives(batch_artefacts.read(self._folder / saved[NEGATIVES]), saved[NEGATIVES])
    if self.bank is not None and saved.get(BANK) is not None:
      self.bank.load(self._folder / saved[BANK])

  def due(self, step: int) -> bool:
    """Returns whether `refresh` would make the batches from `step` on anew: they cannot be made before it."""
    return self._recipe.batcher.refresh_due(self.plan, step) or self._negatives_due(step)

  def refresh(self, step: int, state: TrainState) -> Mapping[str, float]:
    """Makes the batches from `step` on anew if that is due; returns numbers to log, none if it is not.

    Raises: UserError for embeddings that cannot be clustered.
    """
    start = time.perf_counter()
    numbers: dict[str, float] = {}
    if self._recipe.batcher.refresh_due(self.plan, step):
      numbers |= self._refresh_clusters(step, state)
    if self._negatives_due(step):
      numbers |= self._refresh_negatives(step, state)
    return {**numbers, SECONDS: time.perf_counter() - start} if numbers else {}

  def watching(self, step: Callable) -> Callable:
    """Returns the jitted step as (state, batch) -> (state', metrics), whose query embeddings `hold` then finds."""
    if not self._recipe.has_bank:
      return step

    def run(state: TrainState, batch: Batch) -> tuple[TrainState, Mapping[str, Array]]:
      state, (metrics, self._queries) = step(state, batch)
      return state, metrics

    return run

  def hold(self, step: int) -> None:
    """Gives the bank the query embeddings of a step that just went through `watching`; it may still be running."""
    if self.bank is not None and self._queries is not None:
      self.bank.hold(self._recipe.batcher.rows(self.plan, step), self._queries)

  def save(self, step: int) -> dict[str, Any]:
    """Returns what the manifest of a checkpoint after `step` steps says of its batches, and writes its bank."""
    bank = None
    if self._recipe.has_bank:
      bank = f"{BANK}_{step:08d}.npy"
      try:
        if self.bank is not None:
          self.bank.save(self._folder / bank)
      except UserError as error:  # it costs no training: the checkpoint itself may have room
        tqdm.write(f"warning: {error}", file=sys.stderr)
        bank = None
    return {"batches": {BANK: bank, **self._in_force}}

  def close(self) -> None:
    """Gives the bank's folder free."""
    if self.bank is not None:
      self.bank.close()

  def prune(self, steps: list[int]) -> None:
    """Deletes what none of the checkpoints that are kept needs. steps: theirs."""
    used = self._recipe.has_bank or any(self._in_force.values())
    if used and steps and jax.process_index() == 0:
      for kind in (CLUSTERS, NEGATIVES):
        batch_artefacts.prune(self._folder, kind, min(steps))
      batch_artefacts.prune(self._folder, BANK, min(steps), earlier=0)

  def ages(self, step: int) -> dict[str, float]:
    """Returns how many steps ago clusters and negatives were made, to log."""
    last = {kind: self._last(kind) for kind in self._in_force}
    return {f"{kind}_age": float(step - at) for kind, at in last.items() if at is not None}

  def _last(self, kind: str) -> int | None:
    name = self._in_force[kind]
    return None if name is None else step_of(pathlib.Path(name))

  def _refresh_clusters(self, step: int, state: TrainState) -> dict[str, float]:
    batcher, options = self._recipe.batcher, self._recipe.clusters
    path = artefact(self._folder, CLUSTERS, step)
    mesh = self._partitioner.mesh if options.on_devices else None
    if self._recipe.has_bank:
      self._fill_bank(state)

    def compute() -> batch_artefacts.Arrays:
      return as_arrays(batcher.refresh(self.plan, self._embeddings(state), step=step, mesh=mesh).state)

    record = {**self._record(), "batcher": described(batcher), "batch_size": batcher.batch_size}
    arrays = batch_artefacts.write_once(path, record, compute, together=not self._recipe.has_bank)
    self._take_clusters(arrays, path.name)
    size = float(self.plan.state["cluster_size"])
    self._say(
      f"step {step:,}: batches are made of clusters of {size:.0f} of {self._data.num_examples:,} examples"
    )
    return {"cluster_size": size}

  def _negatives_due(self, step: int) -> bool:
    negatives = self._recipe.negatives.refresh
    if negatives is None:
      return False
    return negatives.due(self._recipe.batcher, self.plan, step, self._last(NEGATIVES))

  def _refresh_negatives(self, step: int, state: TrainState) -> dict[str, float]:
    assert self._recipe.negatives.refresh is not None
    path, depth = artefact(self._folder, NEGATIVES, step), self._recipe.negatives.refresh.depth

    def compute() -> batch_artefacts.Arrays:
      searcher = DenseSearcher(self._encoder(state), step, f"step {step} of the training")
      options = MiningOptions(per_query=depth, first_rank=1, last_rank=depth)
      mined = mine_negatives(searcher, self._data, options)
      table = HardNegatives.from_pairs(mined.query_rows, mined.passage_rows, self._data.queries.num_rows)
      return table._asdict()

    record = {**self._record(), "depth": depth}
    arrays = batch_artefacts.write_once(path, record, compute, together=True)
    self._take_negatives(arrays, path.name)
    assert self._data.negatives is not None
    mean = float(self._data.negatives.counts[self._data.examples].mean())
    self._say(f"step {step:,}: {mean:.0f} hard negatives a query, mined with the model as it is")
    return {"mined_negatives": mean}

  def _resume_clusters(self, path: pathlib.Path) -> None:
    """Takes the clusters of a checkpoint, unless they are of other data or cut by another batch size: batches are then
    random until the next epoch, whose beginning makes new ones."""
    arrays, record = batch_artefacts.read(path), batch_artefacts.record_of(path)
    size, batch = int(as_state(arrays).get("cluster_size", 1)), self._recipe.batcher.batch_size
    reason = None
    if record.get("task_fingerprint") != self._data.fingerprint:
      reason = "are of other data than the training's"
    elif batch % size:
      reason = f"have {size} examples each, which does not divide BATCH_SIZE={batch}"
    if reason is None:
      self._take_clusters(arrays, path.name)
    elif jax.process_index() == 0:
      message = f"warning: the clusters of {path} {reason}: batches are random until the next epoch begins."
      print(message, file=sys.stderr)

  def _take_clusters(self, arrays: batch_artefacts.Arrays, name: str) -> None:
    path = self._folder / name
    state = cluster_state(path, arrays, num_examples=self._data.num_examples)
    self.plan = self.plan._replace(state=state)
    self._in_force[CLUSTERS] = name

  def _take_negatives(self, arrays: batch_artefacts.Arrays, name: str) -> None:
    table = HardNegatives(**arrays)
    if len(table.offsets) != self._data.queries.num_rows + 1:
      raise UserError(
        f"{self._folder / name} is of {len(table.offsets) - 1} queries, and the data have {self._data.queries.num_rows}. Go on "
        "with the data that the training was begun with, or start in another MODEL_DIR."
      )
    self._data = self._data._replace(negatives=table)
    self._in_force[NEGATIVES] = name

  def _record(self) -> dict[str, object]:
    return {"task_fingerprint": self._data.fingerprint, "seed": self._seed}

  def _embeddings(self, state: TrainState) -> Float[np.ndarray, "e d"]:
    """Returns the embedding of each example's query: the bank's, or encoded."""
    if self.bank is None:
      return self._encoder(state).queries(SomeRows(self._data.queries, self._data.examples))
    return self.bank.embeddings

  def _fill_bank(self, state: TrainState) -> None:
    """Encodes what no step has seen, all processes together; the bank is process 0's."""
    missing: list[int] = []
    if self.bank is not None:
      self.bank.flush()
      missing = np.flatnonzero(self.bank.missing).tolist()
    rows = np.asarray(processes.agree(missing), np.int64)
    if not len(rows):
      return
    embeddings = self._encoder(state).queries(SomeRows(self._data.queries, self._data.examples[rows]))
    if self.bank is not None:
      self.bank.write(rows, embeddings)

  def _encoder(self, state: TrainState) -> Encoder:
    return Encoder(self._recipe.retriever.model, state.params["model"], self._partitioner)

  def _say(self, message: str) -> None:
    if jax.process_index() == 0:
      tqdm.write(message)


def _estimation(recipe: Recipe, data: RetrievalData, seed: int) -> tuple[Batcher, Plan] | None:
  """Returns how a loss's estimation batches are drawn: random ones, whatever the batcher, in an order of their own."""
  size = recipe.examples.estimation_size(recipe.loss, recipe.batcher.batch_size)
  if not size:
    return None
  if data.tasks:
    raise UserError(
      "the loss draws a second batch for its estimate, and the training data are a mixture. Train on one task, or choose a loss "
      "that estimates from the batch itself, such as --gin_file=losses/sogram.gin."
    )
  batcher = shuffled(size)
  return batcher, batcher.plan(num_examples=data.num_examples, seed=seed + OTHER_SEED)
