"""ClassifierBatches: which points and labels come at which step, and clusters of points where the batcher asks for them."""

import pathlib
from collections.abc import Mapping
from typing import Any, Final

import jax
from jax.sharding import Mesh
from tqdm import tqdm

from retrieval_jax import batch_artefacts
from retrieval_jax.batch_artefacts import artefact, as_arrays, cluster_state
from retrieval_jax.batching.base import Batcher, Plan
from retrieval_jax.errors import UserError
from retrieval_jax.label_unions import LabelUnions, UnionBatch

CLUSTERS: Final = "clusters"


class ClassifierBatches:
  """The batches of a training of classifiers: of step t a pure function of (seed, t, the clusters in force).

  A batcher such as NGAME's clusters the points' cached embeddings, at unit length, which the frozen encoder never changes.
  Clusters are written down once in MODEL_DIR/classifiers/batches before they are used, and a checkpoint names them, so a
  resumed run forms the very batches of the run that was stopped.
  mesh: the devices that cluster; None: the CPU.

  Example: `batches.start(folder, manifest={}); batches.refresh(0); batch = batches.make(0)`.
  """

  def __init__(self, unions: LabelUnions, batcher: Batcher, plan: Plan, *, mesh: Mesh | None = None):
    self._unions, self._batcher, self.plan, self._mesh = unions, batcher, plan, mesh
    self._in_force: str | None = None

  def make(self, step: int) -> UnionBatch:
    """Returns the batch of a step (numpy)."""
    return self._unions.batch(self._batcher.rows(self.plan, step), self._batcher.epochs(self.plan, step))

  def start(self, folder: pathlib.Path, manifest: Mapping[str, Any]) -> None:
    """Takes up the batches of a checkpoint. folder: MODEL_DIR/classifiers. manifest: the checkpoint's; {} at step 0.

    Raises: UserError if the clusters that the checkpoint names are not there, or are of other points.
    """
    self._folder = folder / batch_artefacts.FOLDER
    name = manifest.get(CLUSTERS)
    if name is not None:
      self._take(batch_artefacts.read(self._folder / name), name)
    elif not manifest and jax.process_index() == 0:
      batch_artefacts.clear(self._folder)

  def refresh(self, step: int) -> None:
    """Clusters the points anew if that is due before batch `step`."""
    if not self._batcher.refresh_due(self.plan, step):
      return

    def compute() -> batch_artefacts.Arrays:
      return as_arrays(
        self._batcher.refresh(self.plan, self._unions.examples(), step=step, mesh=self._mesh).state
      )

    data = self._unions.data
    record = {"task_fingerprint": data.fingerprint, "seed": self.plan.seed, "batcher": repr(self._batcher)}
    path = artefact(self._folder, CLUSTERS, step)
    self._take(batch_artefacts.write_once(path, record, compute), path.name)
    if jax.process_index() == 0:
      size = self.plan.state.get("cluster_size", 1)
      tqdm.write(f"step {step:,}: batches are made of clusters of {size} of {data.num_examples:,} points")

  def saved(self) -> dict[str, str | None]:
    """Returns what the manifest of a checkpoint says of its batches."""
    return {CLUSTERS: self._in_force}

  def prune(self, steps: list[int]) -> None:
    """Deletes clusters that none of the checkpoints of these steps needs."""
    if self._in_force is not None and steps and jax.process_index() == 0:
      batch_artefacts.prune(self._folder, CLUSTERS, min(steps))

  def _take(self, arrays: batch_artefacts.Arrays, name: str) -> None:
    state = cluster_state(self._folder / name, arrays, num_examples=self.plan.num_examples)
    size, batch = int(state["cluster_size"]), self._batcher.batch_size
    if batch % size:
      raise UserError(
        f"{self._folder / name} has clusters of {size} points, which does not divide BATCH_SIZE={batch}. Go on with the "
        "batch size of the checkpoint, or move MODEL_DIR/classifiers away."
      )
    self.plan = self.plan._replace(state=state)
    self._in_force = name
