"""Gravity: a penalty on the scores of all pairs of the data, by Gramians of both sides instead of pairs.

The gravity of n examples with query embeddings u_i and passage embeddings v_j is
  g = (1/n^2) sum_ij (<u_i, v_j> - p_ij)^2 = <G_query, G_passage> - 2 <H_query, H_passage> + c,
with G the mean of u u^T, and the H and c of a prior p (0 by default). The components here estimate the Gramians, by one batch,
by an average of batches or by a cache of all rows, and differentiate a batch against the estimate, which is constant:
gramian_rows.loss_against. Each returns its estimate of g; the weight lambda is that of `weighted_sum`.
"""

import functools
import numbers
from typing import Any, get_args

from jaxtyping import Array, PyTree

from retrieval_jax import scoring
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.losses import sagram as cached
from retrieval_jax.losses import schedules
from retrieval_jax.losses import sogram as online
from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.losses.gramian_prior import Prior
from retrieval_jax.losses.gramian_state import CachedState, OnlineState
from retrieval_jax.losses.schedules import Weight
from retrieval_jax.losses.sogram import Batches, Start
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score

MARGINALS = frozenset({"marginals"})
ESTIMATION = frozenset({"estimation"})


def batch_gravity(*, batches: str = "two", score: Score = scoring.dot, prior: Prior | None = None) -> Loss:
  """Returns the gravity by sampling: the Gramians of one batch stand for those of the data.

  batches "two", the baseline of the paper: the Gramians are of the step's estimation batch B, which has no gradient, so that
  the value is over the pairs of B with the examples of the batch that learns; unbiased. "in_batch": both are of the batch
  itself, all its pairs, a query's own passage among them. With |B| examples drawn with replacement its mean is
    (1 - 1/|B|) g + (1/|B|) mean_i (<u_i, v_i> - p_ii)^2,
  so that beside a squared loss to the score 1 the positives' scores are drawn to 1 / (1 + 2 lambda / |B|): .86 for lambda 10 and
  |B| = 128. Memory O(d^2) and time O(q d^2) where the pairs themselves would be O(q^2) and O(q^2 d).

  Of the batch: marginals, and for "two" the estimation batch. Hard negatives take no part; nor do examples that are to have no
  in-batch negatives. Without an estimate (evaluation before training) the batch's own Gramians are used; evaluation uses
  the last. State, metrics, score and prior: as `sogram`, of which this is alpha 1.

  Raises: UserError for another batches, a score that is neither scoring.dot nor scoring.cosine, and, while tracing, a batch
    without marginals.

  Source: Krichene et al. (2019), "Efficient Training on Very Large Corpora via Gramian Estimation", section 3.3.

  Example: `weighted_sum({"squared": (0.5, squared_error(score=dot)), "gravity": (10.0, batch_gravity())})`.
  """
  _check_choice("batch_gravity", "batches", batches, ("two", "in_batch"))
  return _online("batch_gravity", 1.0, "harmonic", batches, score, prior)


def sogram(
  *,
  alpha: Weight = 0.05,
  start: str = "harmonic",
  batches: str = "lagged",
  score: Score = scoring.dot,
  prior: Prior | None = None,
) -> Loss:
  """Returns SOGram: the gravity against Gramians averaged over the batches, G <- (1 - a) G + a G_batch at each step.

  alpha: a number, or a schedule (schedules.decay) of the number of updates done, above 0 and at most 1; where a schedule gives
  another, the loss is not a number and its metric `alpha` tells why. About .05 for batches of 128, .01 to .05 for
  1,024; below 8 times the learning rate the estimate lags so far that training swings, above all with Adam.
  start: "harmonic", the weight is max(alpha, 1 / (t + 1)), a running mean first; "debiased", the average divided by the sum
  of its weights; "zero", the paper's: no repulsion for the first 1 / alpha steps, in which embeddings fold onto a line.
  Or start from measured Gramians: gramian_state.replaced.
  batches: "lagged", the batch learns from the average of those before it, then joins it: one batch, no bias, one step late.
  "two", the paper's: an estimation batch of its own joins before the batch learns. "in_batch": the batch joins first and
  learns from the result, which has the bias of batch_gravity(batches="in_batch") times alpha.
  score: scoring.dot, or scoring.cosine, for which the Gramians are those of the unit vectors. prior: gramian_prior.py; its
  cross-Gramians are averaged likewise, and its constant, the batch's mean of p_ij^2, is in the value only.

  The masses of the batch's marginals weigh either side's rows, over fixed denominators; an example counts with its weight.
  Parameters: none. State: OnlineState, O(d^2), float32, the same on every device. Microbatches: all learn from the average
  before the step; their mean joins it once. A batch of padding changes nothing. Where there is no estimate yet, at the
  first "lagged" step, the batch's own Gramians are used once, since a step without repulsion would fold the embeddings
  (start "zero" excepted).

  Value: the estimate of g by the batch against the average, so half of the paper's sum; the gradient is the paper's.
  Metrics: alpha, the newest batch's weight in the estimate, and those of gramian_rows.metrics_of. Not a number in an embedding
  or in the estimate makes the loss so.

  Reads the marginals of the batch, and for "two" its estimation batch. Hard negatives take no part; nor do examples that are
  to have no in-batch negatives.

  Raises: UserError for an alpha that is not above 0 and at most 1, also of a schedule where it is tried (schedules.TRIED),
    another start, batches or score; from init, a prior of other data; and, while tracing, a batch without marginals.

  Source: Krichene et al. (2019), "Efficient Training on Very Large Corpora via Gramian Estimation", algorithm 2, equation 16.

  Example: `weighted_sum({"samtone": (1.0, samtone()), "gravity": (0.1, sogram(score=scoring.cosine))})`.
  """
  _check_alpha(alpha)
  _check_choice("sogram", "start", start, get_args(Start))
  _check_choice("sogram", "batches", batches, get_args(Batches))
  return _online("sogram", alpha, start, batches, score, prior)


def sagram(
  *,
  beta: str = "in_cone",
  project: bool = True,
  batches: str = "lagged",
  cache_dtype: str = "float32",
  score: Score = scoring.dot,
  prior: Prior | None = None,
) -> Loss:
  """Returns SAGram: the gravity against Gramians of a cache that holds every row's last embedding.

  With S = sum_x rho_x z_x z_x^T over the cached embeddings z (rho: the share of the marginals), the rows of a batch correct it by
  beta "in_cone", the paper's 1/n: each different row's part once, sum_x rho_x (u_x u_x^T - z_x z_x^T), always positive
    semi-definite, and the better for batches of about 128; or "unbiased", the paper's 1: the mean over the batch of
    m_i (u_i u_i^T - z_i z_i^T), right in the mean and not always semi-definite, so that `project` moves it to the nearest
    matrix which is (O(d^3) a step; without, the loss may have no lower bound).
  While not all rows have been seen, "in_cone" divides by the share of those that have; "unbiased" stays right by itself.
  batches: "lagged", the batch learns from the estimate of the caches before it, and then refreshes them; "two", the paper's: an
  estimation batch corrects the estimate first, and only the batch that learns refreshes the caches.
  A refresh writes each different row once; the embeddings are those before the step's update.

  cache_dtype: "float32", or "bfloat16" for half the memory; S is of what is stored. State: CachedState, the caches
  [num_queries + num_passages, d] split by rows over the devices, all else O(d^2). A step reads and writes the rows of its batch
  alone. Microbatches: all learn from the estimate before the step; a row that two of them hold is refreshed twice, and
  for "unbiased" corrects the next estimate by its first embedding alone. A row whose embedding is not finite is not cached.
  With a prior, the factors of a row must stay the same. sagram_caches: filled (start from given embeddings), rebuilt, drift.

  Otherwise, score and prior too, as `sogram`. Metrics: those of gramian_rows.metrics_of; cached_share_query and
  cached_share_passage, the share of the whole Gramian that the rows seen make up.

  Raises: UserError for another beta, project, batches, cache_dtype or score; from init, a prior of other data; and, while
    tracing, a batch without marginals.

  Source: Krichene et al. (2019), "Efficient Training on Very Large Corpora via Gramian Estimation", algorithm 1.

  Example: `weighted_sum({"squared": (0.5, squared_error(score=dot)), "gravity": (10.0, sagram())})`.
  """
  _check_choice("sagram", "beta", beta, get_args(cached.Beta))
  if not isinstance(project, bool):
    raise UserError(f"sagram: project is {project!r}; expected True or False.")
  _check_choice("sagram", "batches", batches, get_args(cached.Batches))
  _check_choice("sagram", "cache_dtype", cache_dtype, get_args(cached.CacheDtype))
  _check_score("sagram", score)
  _check_prior("sagram", prior)
  options = cached.Options(beta, project, batches, cache_dtype, score, prior)  # pyright: ignore[reportArgumentType]  (checked above)

  def init(rng: Array, *, embed_dim: int, data: DataSizes) -> tuple[dict[str, Any], CachedState]:
    del rng
    _check_rows("sagram", prior, data)
    return {}, cached.initial(options, embed_dim, data)

  def apply(
    params: PyTree, state: CachedState, batch: EmbeddedBatch, *, rng: Array | None, train: bool
  ) -> tuple[LossOutput, CachedState]:
    del params, rng
    return cached.apply(options, state, batch, train=train)

  two = batches == "two"
  return Loss(
    init,
    apply,
    _requires(prior, two),
    before=functools.partial(cached.before, options) if two else None,
    after=functools.partial(cached.after, options),
    state_axes=cached.state_axes,
  )


def _online(name: str, alpha: Weight, start: Any, batches: Any, score: Score, prior: Any) -> Loss:
  _check_score(name, score)
  _check_prior(name, prior)
  options = online.Options(name, alpha, start, batches, score, prior)

  def init(rng: Array, *, embed_dim: int, data: DataSizes) -> tuple[dict[str, Any], OnlineState]:
    del rng
    _check_rows(name, prior, data)
    return {}, online.initial(options, embed_dim)

  def apply(
    params: PyTree, state: OnlineState, batch: EmbeddedBatch, *, rng: Array | None, train: bool
  ) -> tuple[LossOutput, OnlineState]:
    del params, rng
    return online.apply(options, state, batch, train=train)

  two = batches == "two"
  return Loss(
    init,
    apply,
    _requires(prior, two),
    before=functools.partial(online.before, options) if two else None,
    after=None if two else functools.partial(online.after, options),
  )


def _requires(prior: Prior | None, two: bool) -> frozenset[str]:
  return MARGINALS | (ESTIMATION if two else frozenset()) | (frozenset() if prior is None else prior.requires)


def _check_alpha(alpha: Any) -> None:
  if callable(alpha):
    schedules.check("sogram", "alpha", alpha)
    schedules.check_fraction("sogram", "alpha", alpha)
  elif not isinstance(alpha, numbers.Real) or isinstance(alpha, bool) or not 0 < float(alpha) <= 1:
    raise UserError(f"sogram: alpha is {alpha!r}; expected a number above 0 and at most 1, or a schedule.")


def _check_choice(name: str, option: str, given: Any, choices: tuple[str, ...]) -> None:
  if given not in choices:
    raise UserError(
      f"{name}: {option} is {given!r}; expected one of {choices}{nearest(str(given), choices) or '.'}"
    )


def _check_score(name: str, score: Score) -> None:
  if not callable(score) or scoring.preparation(score) is None:
    raise UserError(
      f"{name}: score is {getattr(score, '__name__', score)!r}; expected scoring.dot or scoring.cosine: Gramians give "
      "inner products alone."
    )


def _check_prior(name: str, prior: Any) -> None:
  if prior is not None and not isinstance(prior, Prior):
    hint = " In gin, @name is a function and @name() the prior it makes." if callable(prior) else ""
    raise UserError(f"{name}: prior is {prior!r}; expected a Prior (gramian_prior.py) or None.{hint}")


def _check_rows(name: str, prior: Prior | None, data: DataSizes) -> None:
  if prior is None or prior.sizes is None:
    return
  for side, plural, given, wanted in (
    ("query", "queries", prior.sizes.num_queries, data.num_queries),
    ("passage", "passages", prior.sizes.num_passages, data.num_passages),
  ):
    if given != wanted:
      raise UserError(
        f"{name}: the prior has {given} rows of {side} factors, the training's data have {wanted} {plural}; expected one row "
        "for each, in the order of the data."
      )
