"""Matryoshka embeddings: any loss also on the first coordinates, so that a short embedding is a prefix of the long."""

import math
from collections.abc import Sequence
from typing import Any

from jaxtyping import Array

from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.losses.weighted_sum import weighted_sum
from retrieval_jax.records import EmbeddedBatch, LossOutput


def matryoshka(loss: Loss, *, dims: Sequence[int], weights: Sequence[float] | None = None) -> Loss:
  """Returns the weighted mean over d in dims of `loss` on the first d coordinates of the embeddings,
    sum_d w_d L(q[:, :d], p[:, :d]) / sum_d w_d,  w_d = 1 by default.

  A loss of cosines normalises what it is given, so every prefix is judged by its own length, as it will be in search;
  a loss of inner products takes the prefix as it is. Name the whole embedding's size in dims too: coordinates above
  the largest d are not trained.

  It is a `weighted_sum` of terms "dim_<d>": parameters (a learned temperature), state and random keys of each size
  are its own, and the metrics are under "dim_<d>/". Cost: `loss` once per size, of which the towers' cost is no part.

  Raises: UserError for dims that are empty, repeated or below 1, for weights of another number or not above 0, and,
  when parameters are made or a batch is traced, for a size above that of the embeddings.

  Source: "Matryoshka Representation Learning" (Kusupati et al., 2022), equation 1: all weights 1, but summed.

  Example: `matryoshka(samtone(), dims=(384, 192, 96))`.
  """
  _check(loss, dims, weights)
  weights = [1.0] * len(dims) if weights is None else weights
  total = sum(weights)
  mean = weighted_sum({f"dim_{d}": (w / total, _prefix(loss, d)) for d, w in zip(dims, weights, strict=True)})

  def init(rng: Array, *, embed_dim: int, data: DataSizes) -> tuple[Any, Any]:
    _check_fits(dims, embed_dim)
    return mean.init(rng, embed_dim=embed_dim, data=data)

  def apply(
    params: Any, state: Any, batch: EmbeddedBatch, *, rng: Array | None, train: bool
  ) -> tuple[LossOutput, Any]:
    _check_fits(dims, batch.query.shape[1])
    return mean.apply(params, state, batch, rng=rng, train=train)

  return mean._replace(init=init, apply=apply)


def _prefix(loss: Loss, dim: int) -> Loss:
  """Returns the loss on the first `dim` coordinates."""

  def cut(batch: EmbeddedBatch) -> EmbeddedBatch:
    return batch._replace(query=batch.query[:, :dim], passage=batch.passage[:, :dim])

  def init(rng: Array, *, embed_dim: int, data: DataSizes) -> tuple[Any, Any]:
    del embed_dim
    return loss.init(rng, embed_dim=dim, data=data)

  def apply(
    params: Any, state: Any, batch: EmbeddedBatch, *, rng: Array | None, train: bool
  ) -> tuple[LossOutput, Any]:
    return loss.apply(params, state, cut(batch), rng=rng, train=train)

  def before(state: Any, estimation: EmbeddedBatch | None) -> Any:
    assert loss.before is not None
    return loss.before(state, None if estimation is None else cut(estimation))

  return loss._replace(init=init, apply=apply, before=None if loss.before is None else before)


def _check(loss: Any, dims: Any, weights: Any) -> None:
  if not isinstance(loss, Loss):
    hint = " In gin, @name is a function and @name() the loss it makes." if callable(loss) else ""
    raise UserError(f"matryoshka: expected a Loss, got {loss!r}.{hint}")
  if not isinstance(dims, Sequence) or not dims or any(type(d) is not int or d < 1 for d in dims):
    raise UserError(f"matryoshka: dims is {dims!r}; expected sizes of at least 1, such as (384, 192, 96).")
  if len(set(dims)) < len(dims):
    raise UserError(
      f"matryoshka: dims {tuple(dims)} names a size twice. Name each once; weights make one count more."
    )
  if weights is None:
    return
  if not isinstance(weights, Sequence) or len(weights) != len(dims):
    raise UserError(
      f"matryoshka: weights is {weights!r} for the dims {tuple(dims)}; expected {len(dims)} numbers."
    )
  if not all(isinstance(w, int | float) and 0 < w < math.inf for w in weights):
    raise UserError(f"matryoshka: weights is {tuple(weights)}; expected finite numbers above 0.")


def _check_fits(dims: Sequence[int], embed_dim: int) -> None:
  if max(dims) > embed_dim:
    raise UserError(
      f"matryoshka: the size {max(dims)} of dims {tuple(dims)} is above the embeddings' {embed_dim}. "
      "Take it out (in gin: MATRYOSHKA_DIMS), or raise the model's projection."
    )
