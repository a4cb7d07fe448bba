"""One update: encode both sides, loss on the global batch, gradient, optimizer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from retrieval_jax import sharding
from retrieval_jax.chunked_encoding import Encode, encode_in_chunks, spread
from retrieval_jax.freezing import stop_frozen
from retrieval_jax.hardness import HARDNESS, in_batch_hardness
from retrieval_jax.losses.base import Loss
from retrieval_jax.microbatches import accumulate
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.records import Batch, EmbeddedBatch, LossOutput, Tokens
from retrieval_jax.step_options import StepOptions
from retrieval_jax.table_updates import Narrowed, TableUpdates, joined
from retrieval_jax.train_state import TrainState

Step = Callable[[TrainState, Batch], tuple[TrainState, Mapping[str, Array]]]
# The same, with the query embeddings [q, d] that the loss saw: (state, (metrics, queries)).
StepWithQueries = Callable[[TrainState, Batch], tuple[TrainState, tuple[Mapping[str, Array], Array]]]


def make_train_step(
  model: TowerPair,
  loss: Loss,
  transform: optax.GradientTransformation,
  *,
  seed: int,
  frozen: Sequence[str] = (),
  options: StepOptions = StepOptions(),  # noqa: B008  (an immutable record)
  tables: TableUpdates | None = None,
) -> Step:
  """Returns step(state, batch) -> (state', metrics), pure; jit it with Partitioner.jit_step.

  Dropout keys are fold_in(key(seed), step): nothing random is stored, so a resumed run draws the same masks.
  frozen: patterns of the parameters that stay as they are (freezing.py), for whose gradients nothing is computed;
  `transform` must be the frozen one too: `freeze(transform, frozen)`.
  options: chunks and microbatches, which StepOptions describes. With max_nonfinite_steps a step of which any metric is
  not finite leaves parameters, optimizer and loss state as they were. Without, it leaves NaN in the new state on
  purpose. Either way the metrics say so, and the train loop looks at them before anything is saved (step_guard.py).
  metrics: loss, grad_norm, the loss's own, and with options.hardness how alike the queries are, all float32 scalars.
  tables: what trains the model's tables in the rows that the batch touches (table_updates.py), `initial_state`'s; None:
  `transform` trains them. grad_norm is of all parameters in either case.
  A loss's `before` and `after` run once a step, around all its microbatches. An estimation batch is embedded as evaluation
  embeds, without dropout, gradient or chunks: one forward pass of it more.
  Cost: one forward and backward of both towers over the global batch, and with chunks one more forward; under a data
  mesh XLA gathers the embeddings (q*d and p*d floats) once per side and reduces the gradient once.
  """
  step = _make_step(
    model, loss, transform, seed=seed, frozen=frozen, options=options, tables=tables, with_queries=False
  )

  def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Mapping[str, Array]]:
    state, (metrics, _) = step(state, batch)
    return state, metrics

  return train_step


def make_step_with_queries(
  model: TowerPair,
  loss: Loss,
  transform: optax.GradientTransformation,
  *,
  seed: int,
  frozen: Sequence[str] = (),
  options: StepOptions = StepOptions(),  # noqa: B008  (an immutable record)
  tables: TableUpdates | None = None,
) -> StepWithQueries:
  """Returns the step of `make_train_step` that also hands out the query embeddings which the loss saw, as an embedding
  bank wants them: step(state, batch) -> (state', (metrics, queries [q, d])). Jitted by Partitioner.jit_step every process
  gets all q rows: one gather of q*d floats more.
  """
  return _make_step(
    model, loss, transform, seed=seed, frozen=frozen, options=options, tables=tables, with_queries=True
  )


def _make_step(
  model: TowerPair,
  loss: Loss,
  transform: optax.GradientTransformation,
  *,
  seed: int,
  frozen: Sequence[str],
  options: StepOptions,
  tables: TableUpdates | None,
  with_queries: bool,
) -> Callable[[TrainState, Batch], tuple[TrainState, tuple[Mapping[str, Array], Any]]]:
  in_pieces = options.chunks > 1 or options.microbatches > 1

  def encode(side: Encode, params: PyTree[Array], tokens: Tokens, rng: Array) -> Array:
    if in_pieces:
      return encode_in_chunks(side, params, tokens, chunks=options.chunks, rng=rng)
    return side(params, tokens, dropout_rng=rng)

  def gradient_of(
    model: TowerPair, params: Mapping, loss_state: Any, batch: Batch, rng: Array
  ) -> tuple[Any, LossOutput, Any, Any]:
    query_rng, passage_rng, loss_rng = jax.random.split(rng, 3)

    def objective(params: Mapping) -> tuple[Array, tuple]:
      params = stop_frozen(params, frozen)
      query = encode(model.encode_queries, params["model"], batch.query_tokens, query_rng)
      passage = encode(model.encode_passages, params["model"], batch.passage_tokens, passage_rng)
      embedded = EmbeddedBatch.of(batch, query, passage)
      output, next_state = loss.apply(params["loss"], loss_state, embedded, rng=loss_rng, train=True)
      if options.hardness:
        hardness = in_batch_hardness(query, batch.query_rows, nearest=options.hardness)
        output = output._replace(metrics={**output.metrics, HARDNESS: hardness})
      return jnp.asarray(output.loss), (output, next_state, query if with_queries else ())

    gradient, (output, next_state, queries) = jax.grad(objective, has_aux=True)(params)
    return gradient, LossOutput(*jax.tree.map(_scalar, tuple(output))), next_state, queries

  def gradient_in_pieces(
    model: TowerPair, params: Mapping, loss_state: Any, batch: Batch, rng: Array
  ) -> tuple[Any, LossOutput, Any, Any]:
    mesh = sharding.data_mesh()
    # Frozen parameters are stopped before the copies too, or their gradient of zeros would be summed over the shards.
    copies, pull = jax.vjp(
      lambda params: {**params, "model": spread(stop_frozen(params, frozen)["model"])}, params
    )
    gradient, output, loss_state, queries = accumulate(
      lambda *args: gradient_of(model, copies, *args),
      loss_state,
      batch,
      rng,
      count=options.microbatches,
      shards=1 if mesh is None else mesh.size,
    )
    return pull(gradient)[0], output, loss_state, queries

  def prepared(state: TrainState, batch: Batch) -> tuple[TrainState, Batch]:
    """Returns the state after the loss's `before`, and the batch without what that alone reads."""
    estimation, rest = batch.estimation, batch._replace(estimation=None)
    if loss.before is None:
      return state, rest
    embedded = None
    if estimation is not None:
      query = model.encode_queries(state.params["model"], estimation.query_tokens)
      passage = model.encode_passages(state.params["model"], estimation.passage_tokens)
      embedded = EmbeddedBatch.of(estimation, query, passage)
    return state.replace(loss_state=loss.before(state.loss_state, embedded)), rest

  def updated(state: TrainState, narrowed: Narrowed, gradient: Any, finite: Array | None) -> tuple[Any, Any]:
    """Returns the parameters and the optimizer state after the step."""
    if tables is None:
      return _updated(transform, gradient, state.params, state.opt_state, finite)
    rest, _ = tables.split(state.params)
    of_rest, of_tables = tables.split(gradient)
    rest, dense = _updated(transform, of_rest, rest, state.opt_state["dense"], finite)
    own, slots = tables.written(
      state.params, state.opt_state["tables"], narrowed, of_tables, state.step, keep=finite
    )
    return joined(rest, own), {"dense": dense, "tables": slots}

  def train_step(old: TrainState, batch: Batch) -> tuple[TrainState, tuple[Mapping[str, Array], Any]]:
    rng = jax.random.fold_in(jax.random.key(seed), old.step)
    state, batch = prepared(old, batch)
    seen = (
      Narrowed(model, state.params, batch, {}) if tables is None else tables.narrowed(state.params, batch)
    )
    gradient, output, loss_state, queries = (gradient_in_pieces if in_pieces else gradient_of)(
      seen.model, seen.params, state.loss_state, seen.batch, rng
    )
    if loss.after is not None:
      loss_state = loss.after(loss_state)
    metrics = {"loss": output.loss, "grad_norm": _scalar(optax.tree.norm(gradient)), **output.metrics}
    finite = None
    if options.max_nonfinite_steps:
      finite = jnp.all(jnp.isfinite(jnp.stack(list(metrics.values()))))
    params, opt_state = updated(state, seen, gradient, finite)
    loss_state = _kept(finite, loss_state, old.loss_state)
    new = TrainState(state.step + 1, params, loss_state, opt_state)  # pyright: ignore[reportArgumentType]  (jaxtyping's Int)
    return new, (metrics, queries)

  return train_step


def _updated(
  transform: optax.GradientTransformation, gradient: Any, params: Any, opt_state: Any, finite: Array | None
) -> tuple[Any, Any]:
  updates, new_state = transform.update(gradient, opt_state, params)
  return _kept(finite, (optax.apply_updates(params, updates), new_state), (params, opt_state))


def _kept(finite: Array | None, new: Any, old: Any) -> Any:
  """Returns `new` where the step is finite, else `old`; `new` where nobody asks."""
  return new if finite is None else jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)


def _scalar(value: Any) -> Array:
  return jnp.asarray(value, jnp.float32)
