"""One update: encode both sides, loss on the global batch, gradient, optimizer."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from retrieval_jax.freezing import stop_frozen
from retrieval_jax.losses.base import Loss
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.records import Batch, EmbeddedBatch
from retrieval_jax.train_state import TrainState

Step = Callable[[TrainState, Batch], tuple[TrainState, Mapping[str, Array]]]


def make_train_step(
  model: TowerPair,
  loss: Loss,
  transform: optax.GradientTransformation,
  *,
  seed: int,
  frozen: Sequence[str] = (),
) -> Step:
  """Returns step(state, batch) -> (state', metrics), pure; jit it with Partitioner.jit_step.

  Dropout keys are fold_in(key(seed), step): nothing random is stored, so a resumed run draws the same masks.
  frozen: patterns of the parameters that stay as they are (freezing.py), for whose gradients nothing is computed;
  `transform` must be the frozen one too: `freeze(transform, frozen)`.
  metrics: loss, grad_norm, the loss's own, all float32 scalars. A non-finite loss or gradient leaves NaN in the new
  state on purpose: the train loop looks at the metrics before anything is saved, and stops.
  Cost: one forward and backward of both towers over the global batch; under a data mesh XLA gathers the embeddings
  (q*d and p*d floats) once per side and reduces the gradient once.
  """

  def step(state: TrainState, batch: Batch) -> tuple[TrainState, Mapping[str, Array]]:
    query_rng, passage_rng, loss_rng = jax.random.split(
      jax.random.fold_in(jax.random.key(seed), state.step), 3
    )

    def objective(params: Mapping) -> tuple[Array, tuple]:
      params = stop_frozen(params, frozen)
      query = model.encode_queries(params["model"], batch.query_tokens, dropout_rng=query_rng)
      passage = model.encode_passages(params["model"], batch.passage_tokens, dropout_rng=passage_rng)
      embedded = EmbeddedBatch.of(batch, query, passage)
      output, loss_state = loss.apply(params["loss"], state.loss_state, embedded, rng=loss_rng, train=True)
      return jnp.asarray(output.loss), (output, loss_state)

    gradient, (output, loss_state) = jax.grad(objective, has_aux=True)(state.params)
    updates, opt_state = transform.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = {"loss": output.loss, "grad_norm": optax.tree.norm(gradient), **output.metrics}
    metrics = {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}
    return TrainState(state.step + 1, params, loss_state, opt_state), metrics  # pyright: ignore[reportArgumentType]  (jaxtyping's Int)

  return step
