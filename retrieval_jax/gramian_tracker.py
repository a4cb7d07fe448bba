"""GramianTracker: how far a gravity's estimate is from the exact Gramians while training, and whether it keeps pace."""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from tqdm import tqdm

from retrieval_jax import scoring
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.marginal_tables import SideTables
from retrieval_jax.data.marginals import marginal_tables
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.losses import gramian_matrices
from retrieval_jax.losses.gramian_matrices import Gramians
from retrieval_jax.losses.gramian_state import estimates, states
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.recipe import Recipe
from retrieval_jax.records import Batch, EmbeddedBatch
from retrieval_jax.some_rows import SomeRows
from retrieval_jax.train_state import TrainState

PREFIX = "gramian"
OVERSHOOT = 0.005  # of the stability ratio: below, embeddings swell threefold; .02 to .06 has done no harm
SWING = 1.5  # of the traces' ratio, up and down, that counts as an oscillation

Step = Callable[[TrainState, Batch], tuple[TrainState, Mapping[str, Array]]]
Sides = tuple[Array, Array]  # of queries and of their own passages


def exact_gramians(encoder: Encoder, data: RetrievalData, *, unit: bool = False) -> Gramians:
  """Returns sum_x rho_x u_x u_x^T of both sides, without a prior's, by encoding every row that has a share.

  data.marginals must be there. unit: of unit vectors, for a score that is the cosine.

  Cost: a forward pass of all those rows, and their embeddings in memory.

  Example: `gramian_matrices.gravity(exact_gramians(Encoder(model, params, part), data))`.
  """
  assert data.marginals is not None
  tables = data.marginals
  return Gramians(
    _weighted(encoder.queries, data.queries, tables.queries, unit),
    _weighted(encoder.passages, data.passages, tables.passages, unit),
  )


def check_period(period: int) -> None:
  """Raises UserError for a GRAMIAN_PERIOD that cannot be."""
  if type(period) is not int or period < 0:
    raise UserError(f"GRAMIAN_PERIOD={period!r}: expected a whole number of at least 0.")


class GramianTracker:
  """Compares the loss's estimates with the exact Gramians, every recipe.gramian_period steps, and measures the step's pace.

  Numbers to log, under "gramian/":
    gravity, effective_rank_query, effective_rank_passage: of the exact Gramians at the step's parameters;
    error_query, error_passage: ||G_hat - G||_F / ||G||_F of the estimate that the step learnt against, as soon as there is one
      (with GRAVITY_BATCHES 'in_batch': of the one that the batch then joined); not of a gravity on prefixes (matryoshka);
    rate: the effective rate eta at which the step moved the embeddings' common part: their mean change against the mean of
      the loss's gradient by them; stability: alpha / (8 eta) for a loss with an EMA. From 1 on its embeddings do not
      overshoot; far below, repulsion comes 1 / alpha steps late and they swell and shrink: a warning comes below .005.
  A warning is printed once when the ratio is far below 1, and once when the traces of G and G_hat swing about each other.

  Source: the stability is that of the linearised common mode x' = -eta ((x^2 - 1) x + 2 lambda G x), G' = alpha (x^2 - G).

  Example: `tracker.watching(step)` is the step to run; after each, `tracker.numbers()` is what there is to log.
  """

  def __init__(self, recipe: Recipe, data: RetrievalData, partitioner: Partitioner):
    period = recipe.gramian_period
    if period and data.marginals is None:
      data = data._replace(marginals=marginal_tables(data, recipe.examples.marginals))
    self._recipe, self._data, self._partitioner, self._period = recipe, data, partitioner, period
    self._numbers: dict[str, float] = {}
    self._ratios: list[float] = []
    self._said: set[str] = set()
    self._next: int | None = None  # the number of the next step
    whole = partitioner.replicated
    self._embed = jax.jit(partitioner.traced(self._embeddings), out_shardings=whole)
    self._look = jax.jit(partitioner.traced(self._gradients), out_shardings=whole)

  def watching(self, step: Step) -> Step:
    """Returns the step that tracks on the way. It keeps the embeddings of one batch, and waits for the device where it
    tracks."""
    if not self._period:
      return step

    def run(state: TrainState, batch: Batch) -> tuple[TrainState, Mapping[str, Array]]:
      number = int(state.step) if self._next is None else self._next  # later steps are not waited for
      self._next = number + 1
      if number % self._period:
        return step(state, batch)
      encoder = Encoder(self._recipe.retriever.model, state.params["model"], self._partitioner)
      unit = any(bool(own.unit) for own in states(state.loss_state).values())
      exact = exact_gramians(encoder, self._data, unit=unit)
      before, gradients = self._look(state.params, state.loss_state, batch)
      used = _here(estimates(state.loss_state))  # copies: the step takes the state's memory
      state, metrics = step(state, batch)
      if self._recipe.loss.before is not None:  # it made an estimate of its own before it learnt
        used = _here(estimates(state.loss_state))
      after = self._embed(state.params, batch)
      found = _numbers(exact, used)
      rate = effective_rate(before, after, gradients)
      found |= {"rate": rate}
      alphas = [float(value) for name, value in metrics.items() if name.split("/")[-1] == "alpha"]
      if alphas and 0 < alphas[0] < 1 and rate > 0:  # 0: no estimate yet; 1: no average that could lag
        found["stability"] = alphas[0] / (8 * rate)
      self._numbers = {f"{PREFIX}/{name}": value for name, value in found.items()}
      self._warn(number, found, exact, used)
      return state, metrics

    return run

  def numbers(self) -> Mapping[str, float]:
    """Returns what the last tracking found, once; {} where nothing was tracked since."""
    found, self._numbers = self._numbers, {}
    return found

  def _embeddings(self, params: Any, batch: Batch) -> Sides:
    model = self._recipe.retriever.model
    query = model.encode_queries(params["model"], batch.query_tokens)
    return query, model.encode_passages(params["model"], batch.passage_tokens)[: query.shape[0]]

  def _gradients(self, params: Any, loss_state: Any, batch: Batch) -> tuple[Sides, Sides]:
    """Returns the embeddings of a batch's pairs, and the loss's gradient by them for each example."""
    model, loss = self._recipe.retriever.model, self._recipe.loss
    query = model.encode_queries(params["model"], batch.query_tokens)
    passage = model.encode_passages(params["model"], batch.passage_tokens)

    def value(query: Array, passage: Array) -> Array:
      embedded = EmbeddedBatch.of(batch, query, passage)
      output, _ = loss.apply(params["loss"], loss_state, embedded, rng=jax.random.key(0), train=False)
      return jnp.asarray(output.loss)

    gradients = jax.grad(value, argnums=(0, 1))(query, passage)
    examples = query.shape[0]
    return (query, passage[:examples]), (examples * gradients[0], examples * gradients[1][:examples])

  def _warn(
    self, step: int, found: Mapping[str, float], exact: Gramians, estimated: Mapping[str, Any]
  ) -> None:
    if found.get("stability", 1.0) < OVERSHOOT:
      self._say(
        "stability",
        f"warning: step {step:,}: gramian/stability is {found['stability']:.2g}: the embeddings move much faster than the "
        "estimate of their Gramian follows, so they will overshoot. Raise GRAVITY_ALPHA or lower the learning rate of the dense layers.",
      )
    for estimate in estimated.values():
      trace = float(np.trace(np.asarray(estimate.passage)))
      if trace > 0:
        self._ratios.append(float(np.trace(exact.passage)) / trace)
    recent = self._ratios[-10:]
    if recent and max(recent) > SWING and min(recent) < 1 / SWING:
      self._say(
        "oscillation",
        f"warning: step {step:,}: the estimated Gramian oscillates: the exact one's trace went from {min(recent):.2f} to "
        f"{max(recent):.2f} times its own. Raise GRAVITY_ALPHA, or lower the learning rate of the dense layers.",
      )

  def _say(self, kind: str, message: str) -> None:
    if kind not in self._said and jax.process_index() == 0:
      tqdm.write(message, file=sys.stderr)
    self._said.add(kind)


def effective_rate(before: Sides, after: Sides, gradients: Sides) -> float:
  """Returns eta with mean change = -eta mean gradient, the least-squares fit over both sides; 0 without a gradient.

  Example: embeddings that moved by -0.1 times their gradient give 0.1.
  """
  moved = [np.mean(np.asarray(b) - np.asarray(a), axis=0) for a, b in zip(before, after, strict=True)]
  pulled = [np.mean(np.asarray(g), axis=0) for g in gradients]
  whole = sum(float(np.sum(g**2)) for g in pulled)
  along = -sum(float(np.sum(m * g)) for m, g in zip(moved, pulled, strict=True))
  return along / whole if whole and math.isfinite(along) else 0.0


def _here(estimated: Mapping[str, Gramians]) -> Mapping[str, Gramians]:
  """Returns copies on this process's own device: of several processes the state is on the devices of all."""
  return jax.tree.map(lambda x: jnp.asarray(np.array(x)), dict(estimated))


def _numbers(exact: Gramians, estimated: Mapping[str, Gramians]) -> dict[str, float]:
  found = {
    "gravity": gramian_matrices.gravity(exact),
    "effective_rank_query": gramian_matrices.effective_rank(exact.query),
    "effective_rank_passage": gramian_matrices.effective_rank(exact.passage),
  }
  for prefix, estimate in estimated.items():
    name = f"{prefix}/" if len(estimated) > 1 else ""
    if estimate.query.shape != exact.query.shape or not jnp.any(estimate.query):
      continue
    for side in ("query", "passage"):
      distance = gramian_matrices.relative_distance(getattr(estimate, side), getattr(exact, side))
      found[f"{name}error_{side}"] = distance
  return {name: float(value) for name, value in found.items()}


def _weighted(encode: Callable, store: Any, tables: SideTables, unit: bool) -> Float[Array, "d d"]:
  rows = np.flatnonzero(tables.share > 0)
  embeddings = encode(SomeRows(store, rows))
  if unit:
    embeddings = np.asarray(scoring.l2_normalize(jnp.asarray(embeddings)))
  shares = tables.share[rows, None]
  return jnp.asarray(embeddings.T @ (shares * embeddings))
