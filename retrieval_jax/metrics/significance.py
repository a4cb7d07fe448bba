"""How sure a mean over queries is: a confidence interval, and a test of two rankings of the same queries."""

import warnings
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from retrieval_jax.errors import UserError, nearest

BLOCK = 1 << 20  # numbers drawn at once: arrays of 8 MB
METHODS = ("randomisation", "t")


class Interval(NamedTuple):
  low: float
  high: float


class Comparison(NamedTuple):
  """What a paired test says.

  difference: mean of the first minus mean of the second.
  p_value: how probable a difference at least as large, in either direction, is if the two are equally good.
  count: the number of queries compared.
  """

  difference: float
  p_value: float
  count: int


def confidence_interval(
  values: Float[np.ndarray, "q"], *, level: float = 0.95, samples: int = 10_000, seed: int = 0
) -> Interval:
  """Returns the bootstrap percentile interval of the mean of a metric over queries.

  values: of each query; NaN (no judgement) is left out.
  level: the part of the resampled means that lies inside.
  samples: how often as many queries are drawn, with repetition. 10,000 of 7,000 queries take 0.3 s.

  It says how much the mean depends on which queries were asked, and nothing of how good the judgements are. The same
  seed gives the same interval. Memory: some arrays of 8 MB, or of one sample where that is larger.

  Raises: UserError for no value at all, an infinite one, a level outside (0, 1), and fewer than 1 sample.

  Source: Efron and Tibshirani (1993), "An Introduction to the Bootstrap", chapter 13.

  Example: `confidence_interval(np.array([0.5, 0.5, np.nan]))` is `(0.5, 0.5)`.
  """
  if not 0 < level < 1:
    raise UserError(f"confidence_interval: level is {level}; expected a part of 1, such as 0.95.")
  _check_samples("confidence_interval", samples)
  values = np.asarray(values, np.float64)
  values = values[~np.isnan(values)]
  if not len(values) or not np.isfinite(values).all():
    raise UserError(f"confidence_interval: {len(values)} values; expected at least one, and finite ones.")
  means = np.concatenate(list(_resampled_means(values, samples, np.random.default_rng(seed))))
  low, high = np.quantile(np.clip(means, values.min(), values.max()), [(1 - level) / 2, (1 + level) / 2])
  return Interval(float(low), float(high))


def paired_test(
  a: Float[np.ndarray, "q"],
  b: Float[np.ndarray, "_"],
  *,
  method: Literal["randomisation", "t"] = "randomisation",
  samples: int = 10_000,
  seed: int = 0,
) -> Comparison:
  """Returns how the means of a metric differ between two rankings of the same queries, and how probable that is.

  a, b: values of each query, in the same order; NaN in both (no judgement) is left out.
  method: "randomisation" changes the two rankings of every query at random, two-sided. If all changes of the queries
    that differ are no more than `samples`, it makes each of them once: the probability is exact. "t" is Student's
    paired test, two-sided.
  samples: changes drawn by "randomisation": 10,000 on 7,000 queries that differ take 5 s and 130 MB. No
    probability below 2 / (samples + 1) can come out unless it is exact.

  Where no query differs the probability is 1; where all differ by the same amount Student's is 0.

  Raises: UserError for other shapes, values of one ranking where the other has none, no value at all, an infinite
  one, fewer than 2 queries for "t", and an unknown method.

  Source: Smucker, Allan and Carterette (2007), "A Comparison of Statistical Significance Tests for Information
  Retrieval Evaluation". The tests are scipy's.

  Example: `paired_test(np.array([1.0, 1.0]), np.array([0.0, 0.5]))` is `(0.75, 0.5, 2)`: 2 of 4 changes are as large.
  """
  if method not in METHODS:
    raise UserError(
      f"paired_test: unknown method {method!r}{nearest(method, METHODS) or '.'} Known: {', '.join(METHODS)}."
    )
  _check_samples("paired_test", samples)
  first, second = _judged_in_both(a, b)
  count, difference = len(first), float(np.mean(first - second))
  if method == "t" and count < 2:
    raise UserError("paired_test: Student's test needs at least 2 queries; take method 'randomisation'.")
  if np.array_equal(first, second):
    return Comparison(0.0, 1.0, count)
  if method == "t":
    return Comparison(difference, _student(first, second), count)
  return Comparison(difference, _randomised(first - second, samples, seed), count)


def _check_samples(name: str, samples: int) -> None:
  if samples < 1:
    raise UserError(f"{name}: {samples} samples; expected at least 1, better 10,000.")


def _resampled_means(
  values: Float[np.ndarray, "q"], samples: int, rng: np.random.Generator
) -> Iterator[Float[np.ndarray, "_"]]:
  step = max(1, BLOCK // len(values))
  for start in range(0, samples, step):
    drawn = rng.integers(0, len(values), (min(step, samples - start), len(values)))
    yield np.mean(values[drawn], axis=1)


def _judged_in_both(
  a: Float[np.ndarray, "q"], b: Float[np.ndarray, "_"]
) -> tuple[Float[np.ndarray, "j"], Float[np.ndarray, "j"]]:
  a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
  if a.shape != b.shape:
    raise UserError(
      f"paired_test: {a.size} and {b.size} values; expected one of each ranking for the same queries."
    )
  one_sided = np.flatnonzero(np.isnan(a) != np.isnan(b))
  if len(one_sided):
    raise UserError(
      f"paired_test: {len(one_sided)} queries have a value in one ranking alone, the first is query {one_sided[0]}; "
      "measure both with the same judgements."
    )
  judged = ~np.isnan(a)
  a, b = a[judged], b[judged]
  if not len(a) or not np.isfinite(a).all() or not np.isfinite(b).all():
    raise UserError(f"paired_test: {len(a)} judged queries; expected at least one, and finite values.")
  return a, b


def _student(a: Float[np.ndarray, "q"], b: Float[np.ndarray, "q"]) -> float:
  from scipy import stats

  with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
    # It warns of differences without spread; the probability is near 0 then, as it should be.
    warnings.simplefilter("ignore", RuntimeWarning)
    return float(stats.ttest_rel(a, b).pvalue)  # pyright: ignore[reportAttributeAccessIssue]


def _randomised(differences: Float[np.ndarray, "q"], samples: int, seed: int) -> float:
  """Returns the probability by changing signs; those of differences of 0 change nothing, so fewer are left to try."""
  from scipy import stats

  differences = differences[differences != 0]
  if len(differences) < 2:
    return 1.0  # both signs of one difference are as large as it
  found = stats.permutation_test(
    (differences,),
    np.mean,
    permutation_type="samples",
    vectorized=True,
    n_resamples=samples,
    batch=max(1, BLOCK // len(differences)),
    rng=np.random.default_rng(seed),
  )
  return float(found.pvalue)
