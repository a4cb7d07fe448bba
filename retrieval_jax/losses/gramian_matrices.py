"""Gramians and what is computed of them: the gravity of two sides, their rank, the nearest matrix that is a Gramian.

Everything is float32 (float64 stays float64) at the highest precision: half of it breaks positive semi-definiteness and the
small differences that SAGram adds up. Written for the global batch: on a mesh XLA makes the sums global.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax.records import AnyArray
from retrieval_jax.scoring import upcast


class Gramians(NamedTuple):
  """The second moments of both sides. query: mean of u u^T over the queries' embeddings; passage: of v v^T over those of
  their own passages. cross_query, cross_passage: mean of u a^T and of v b^T for a prior p_ij = <a_i, b_j>
  (gramian_prior.py), which are neither square nor symmetric; None without a prior."""

  query: Float[Array, "d d"]
  passage: Float[Array, "d d"]
  cross_query: Float[Array, "d f"] | None = None
  cross_passage: Float[Array, "d f"] | None = None


def gram(
  rows: Float[AnyArray, "q d"],
  weights: Float[AnyArray, "q"] | None = None,
  mass: Float[AnyArray, "q"] | None = None,
) -> Float[Array, "d d"]:
  """Returns sum_i w_i m_i x_i x_i^T / sum_i w_i, all weights and masses 1 by default; 0 if all weights are 0.

  weights: of a mean, which they normalise themselves; rows of weight 0 are absent and may hold anything. mass: factors
  whose mean is 1 over the draws that made the rows, not over these rows: the denominator stays fixed, which is unbiased.

  Source: Krichene et al. (2019), equation 4.

  Example: `gram(jnp.eye(2))` is the identity / 2.
  """
  return cross_gram(rows, rows, weights, mass)


def cross_gram(
  rows: Float[AnyArray, "q d"],
  others: Float[AnyArray, "q f"],
  weights: Float[AnyArray, "q"] | None = None,
  mass: Float[AnyArray, "q"] | None = None,
) -> Float[Array, "d f"]:
  """Returns sum_i w_i m_i x_i y_i^T / sum_i w_i, with the weights and masses of `gram`.

  Source: Krichene et al. (2019), appendix C.

  Example: with rows [[1, 2]] and others [[3]] it is [[3], [6]].
  """
  rows, others = upcast(jnp.asarray(rows)), upcast(jnp.asarray(others))
  weights = jnp.ones(rows.shape[0], rows.dtype) if weights is None else jnp.asarray(weights, rows.dtype)
  present = weights > 0
  factors = weights if mass is None else weights * jnp.where(present, jnp.asarray(mass, rows.dtype), 0)
  total = jnp.sum(jnp.where(present, weights, 0))
  factors = jnp.where(present, factors, 0) / jnp.where(total > 0, total, 1)
  rows = jnp.where(present[:, None], rows, 0)
  others = jnp.where(present[:, None], others, 0)
  return moments(rows, others, factors)


def moments(
  rows: Float[Array, "q d"], others: Float[Array, "q f"], factors: Float[Array, "q"]
) -> Float[Array, "d f"]:
  """Returns sum_i f_i x_i y_i^T."""
  return jnp.einsum("qd,qf->df", factors[:, None] * rows, others, precision="highest")


def inner(a: Float[Array, "d f"], b: Float[Array, "d f"]) -> Float[Array, ""]:
  """Returns <A, B>, the sum of the products of their entries."""
  return jnp.sum(a * b)


def gravity(gramians: Gramians, constant: Float[Array, ""] | float = 0.0) -> Float[Array, ""]:
  """Returns <G_query, G_passage> - 2 <H_query, H_passage> + constant, the terms of the prior only where there is one: of
  exact Gramians the mean of (<u_i, v_j> - p_ij)^2 over all i and j. Gradients flow through both sides.

  constant: the mean of p_ij^2.

  Source: Krichene et al. (2019), equations 5 and 15, appendix C.

  Example: with both Gramians the identity in d dimensions it is d.
  """
  value = inner(gramians.query, gramians.passage)
  if gramians.cross_query is not None and gramians.cross_passage is not None:
    value = value - 2 * inner(gramians.cross_query, gramians.cross_passage)
  return value + constant


def double_sum(
  query: Float[AnyArray, "q d"],
  passage: Float[AnyArray, "p d"],
  query_weights: Float[AnyArray, "q"],
  passage_weights: Float[AnyArray, "p"],
  prior: Float[AnyArray, "q p"] | None = None,
) -> Float[Array, ""]:
  """Returns sum_ij w_i z_j (<u_i, v_j> - p_ij)^2 / (sum w sum z), the gravity as it is defined: O(q p d) time and O(q p)
  memory, where `gravity` takes O((q + p) d^2) and O(d^2). The cheaper one below about q = .75 d.

  Source: Krichene et al. (2019), equations 3 and 14.
  """
  scores = jnp.einsum(
    "qd,pd->qp", upcast(jnp.asarray(query)), upcast(jnp.asarray(passage)), precision="highest"
  )
  off = scores if prior is None else scores - prior
  weights = query_weights[:, None] * passage_weights[None, :]
  return jnp.sum(weights * off**2) / jnp.sum(weights)


def in_cone(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
  """Returns the nearest positive semi-definite matrix in the Frobenius norm: negative eigenvalues made 0. No gradient flows
  through it. O(d^3) time.

  Example: of diag(2, -1) it is diag(2, 0).
  """
  symmetric = jax.lax.stop_gradient(matrix + matrix.T) / 2
  values, vectors = jnp.linalg.eigh(symmetric)
  return jnp.einsum("ab,b,cb->ac", vectors, jnp.maximum(values, 0), vectors, precision="highest")


def effective_rank(matrix: Float[Array, "d d"]) -> Float[Array, ""]:
  """Returns tr(G)^2 / |G|_F^2: r for a Gramian with r equal eigenvalues and no others; 0 for the zero matrix.

  Example: of diag(1, 1, 0) it is 2.
  """
  return _ratio(jnp.trace(matrix) ** 2, jnp.sum(matrix**2))


def relative_distance(estimate: Float[Array, "d d"], exact: Float[Array, "d d"]) -> Float[Array, ""]:
  """Returns |A - B|_F / |B|_F; 0 where B is 0.

  Example: of 2 B and B it is 1.
  """
  return _ratio(jnp.linalg.norm(estimate - exact), jnp.linalg.norm(exact))


def trace_ratio(numerator: Float[Array, "d d"], denominator: Float[Array, "d d"]) -> Float[Array, ""]:
  """Returns tr A / tr B; 0 where tr B is 0.

  Example: of 3 B and B it is 3.
  """
  return _ratio(jnp.trace(numerator), jnp.trace(denominator))


def _ratio(numerator: Float[Array, ""], denominator: Float[Array, ""]) -> Float[Array, ""]:
  zero = denominator == 0  # NaN is not: it goes on into the log
  return jnp.where(zero, 0, numerator / jnp.where(zero, 1, denominator))
