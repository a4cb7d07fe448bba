"""Every ranking metric has the properties that its kind promises, on random rankings of graded judgements."""

import inspect

import numpy as np
import pytest

from retrieval_jax.metrics.ranking import METRICS, evaluate_ranking

CORPUS, QUERIES, DEPTH = 40, 30, 20
CUTOFFS = (1, 3, 8, DEPTH)

LOST = 2000  # a row of no result
WEIGHTS = np.random.default_rng(3).uniform(1, 9, LOST)
WEIGHTS = np.append(WEIGHTS, 10.0)  # of the passage LOST

# Name of the metric -> what holds for it. "one": the perfect ranking has 1, at any cutoff; "one_below": it does where
# the cutoff is at least the number of relevant passages; "deeper": a deeper cutoff is never worse; "of_means": it is a
# ratio of two means over the queries, so that a query's value depends on the others' judgements.
PROPERTIES = {
  "ndcg": {"one"},
  "map": {"one_below", "deeper"},
  "mrr": {"one", "deeper"},
  "recall": {"one_below", "deeper"},
  "p": set(),
  "rprec": {"one"},
  "success": {"one", "deeper"},
  "psp": {"of_means"},
  "psndcg": {"of_means"},
  "psrecall": {"of_means"},
}

every_metric = pytest.mark.parametrize("name", METRICS)
every_mean = pytest.mark.parametrize(
  "name", [key for key, kinds in PROPERTIES.items() if "of_means" not in kinds]
)


def _names(name, *, whole=True):
  """Returns the metric's name with each cutoff that it may have, deeper ones later."""
  kind = METRICS[name].cutoff
  with_cutoff = [] if kind == "cannot" else [f"{name}@{cut}" for cut in CUTOFFS]
  return with_cutoff + ([name] if whole and kind != "must" else [])


def having(name):
  return pytest.mark.parametrize(
    "name", [key for key, properties in PROPERTIES.items() if name in properties]
  )


def _judgements(rng):
  """Returns for each query 1 to 12 judged passages of the grades -1 to 3, one of them at least 2; 40.. do not exist."""
  pairs = []
  for count in rng.integers(1, 13, QUERIES):
    grades = rng.integers(-1, 4, count)
    grades[0] = rng.integers(2, 4)
    pairs.append((rng.permutation(CORPUS + 5)[:count], grades))
  return pairs


@pytest.fixture(params=[1, 2], ids=["from_1", "from_2"])
def task(request):
  """Returns a function of rows and names to the evaluation, random rows and the judgements."""
  rng = np.random.default_rng(0)
  qrels = _judgements(rng)
  rows = np.stack([rng.permutation(CORPUS)[:DEPTH] for _ in range(QUERIES)])
  rows[::4, 7:] = -1

  def evaluate(rows, names, qrels=qrels, weights=WEIGHTS):
    return evaluate_ranking(rows, qrels=qrels, metrics=names, relevant_from=request.param, weights=weights)

  return evaluate, rows, qrels, request.param


def _worth(pair, name="ndcg", level=1):
  """Returns what each judged passage of a query is worth to a metric: its grade, or its weight if it is relevant."""
  passages, grades = pair
  return np.where(grades >= level, WEIGHTS[passages], 0) if "of_means" in PROPERTIES[name] else grades


def _perfect(qrels, name="ndcg", level=1):
  """Returns the best possible ranking, passages that the corpus lacks included: the judged ones by falling worth."""
  rows = np.full((QUERIES, DEPTH), -1)
  for row, (passages, grades) in zip(rows, qrels, strict=True):
    worth = _worth((passages, grades), name, level)
    best = np.argsort(-worth, kind="stable")
    best = best[worth[best] > 0]
    row[: len(best)] = passages[best]
  return rows


def test_every_metric_has_a_row():
  assert set(PROPERTIES) == set(METRICS)


@every_metric
def test_it_says_what_it_is_and_where_it_is_from(name):
  text = inspect.getdoc(METRICS[name].value) or ""
  assert ("pyxclib: " if "of_means" in PROPERTIES[name] else "trec_eval: ") in text
  assert "\n\nSource: " in text


@every_metric
def test_it_stands_in_the_docstring_of_evaluate_ranking(name):
  kinds = {"may": f"\n  {name}, {name}@K ", "must": f"\n  {name}@K ", "cannot": f"\n  {name} "}
  assert kinds[METRICS[name].cutoff] in inspect.cleandoc(evaluate_ranking.__doc__ or "")


@every_metric
def test_values_lie_between_0_and_1(task, name):
  evaluate, rows, _, _ = task
  found = evaluate(rows, _names(name))
  for full, values in found.per_query.items():
    assert values.dtype == np.float64
    assert np.all(values >= 0)
    assert found.means[full] <= 1 if "of_means" in PROPERTIES[name] else np.all(values <= 1)
    assert found.means[full] == pytest.approx(values.mean(), rel=1e-12)
    assert len(np.unique(values)) > 1


@having("one")
def test_the_perfect_ranking_has_1(task, name):
  evaluate, _, qrels, _ = task
  for values in evaluate(_perfect(qrels), _names(name)).per_query.values():
    np.testing.assert_allclose(values, 1, rtol=1e-12)


@having("of_means")
def test_the_perfect_ranking_has_a_mean_of_1(task, name):
  evaluate, _, qrels, level = task
  found = evaluate(_perfect(qrels, name, level), _names(name))
  assert found.means == pytest.approx(dict.fromkeys(found.means, 1), rel=1e-12)


@having("one_below")
def test_the_perfect_ranking_has_1_if_all_relevant_passages_are_within_the_cutoff(task, name):
  evaluate, _, qrels, level = task
  relevant = np.array([np.sum(grades >= level) for _, grades in qrels])
  for full, values in evaluate(_perfect(qrels), _names(name)).per_query.items():
    cutoff = int(full.partition("@")[2] or DEPTH)
    np.testing.assert_allclose(values, np.minimum(1, cutoff / relevant), rtol=1e-12)


def test_the_perfect_precision(task):
  evaluate, _, qrels, level = task
  relevant = np.array([np.sum(grades >= level) for _, grades in qrels])
  for full, values in evaluate(_perfect(qrels), _names("p")).per_query.items():
    np.testing.assert_allclose(values, np.minimum(1, relevant / int(full.partition("@")[2])), rtol=1e-12)


@every_metric
def test_no_ranking_is_better_than_the_perfect_one(task, name):
  evaluate, rows, qrels, level = task
  best = evaluate(_perfect(qrels, name, level), _names(name)).per_query
  for full, values in evaluate(rows, _names(name)).per_query.items():
    assert np.all(values <= best[full] + 1e-12)


@every_metric
@pytest.mark.parametrize("depth", [0, 1, DEPTH])
def test_the_empty_ranking_has_0(task, name, depth):
  evaluate, _, _, _ = task
  found = evaluate(np.full((QUERIES, depth), -1), _names(name))
  assert set(found.means.values()) == {0.0}
  assert found.answered == 0


@every_metric
def test_results_that_are_not_relevant_have_0(task, name):
  evaluate, rows, _, _ = task
  assert set(evaluate(np.where(rows < 0, -1, rows + 1000), _names(name)).means.values()) == {0.0}


@every_metric
def test_permuting_the_queries_permutes_the_values(task, name):
  evaluate, rows, qrels, _ = task
  order = np.random.default_rng(1).permutation(QUERIES)
  found = evaluate(rows, _names(name))
  permuted = evaluate(rows[order], _names(name), [qrels[i] for i in order])
  for full, values in found.per_query.items():
    np.testing.assert_allclose(permuted.per_query[full], values[order], rtol=1e-12)
    assert permuted.means[full] == pytest.approx(found.means[full], rel=1e-12)


@every_mean
def test_a_query_is_measured_as_if_it_were_alone(task, name):
  evaluate, rows, qrels, _ = task
  found = evaluate(rows, _names(name)).per_query
  for i in (0, 13):
    alone = evaluate(rows[i : i + 1], _names(name), qrels[i : i + 1]).per_query
    assert {full: values[0] for full, values in alone.items()} == pytest.approx(
      {full: values[i] for full, values in found.items()}, rel=1e-12
    )


@every_metric
def test_numbering_the_passages_otherwise_changes_nothing(task, name):
  evaluate, rows, qrels, _ = task
  number = np.append(np.random.default_rng(2).permutation(1000)[: CORPUS + 5], -1)  # -1 stays -1
  found = evaluate(rows, _names(name)).means
  renamed = [(number[passages], grades) for passages, grades in qrels]
  weights = np.ones(1000)
  weights[number[:-1]] = WEIGHTS[: CORPUS + 5]
  assert evaluate(number[rows], _names(name), renamed, weights).means == pytest.approx(found, rel=1e-12)


@every_metric
def test_what_is_not_judged_changes_nothing_at_the_end(task, name):
  """Results beyond the others, empty places, and judgements of passages as not relevant."""
  evaluate, rows, qrels, _ = task
  found = evaluate(rows, _names(name)).means
  end = np.arange(QUERIES * 3).reshape(QUERIES, 3) + 500
  assert evaluate(np.concatenate([rows, end], axis=1), _names(name)).means == found
  assert evaluate(np.concatenate([rows, np.full_like(end, -1)], axis=1), _names(name)).means == found
  more = [(np.append(passages, [600, 601]), np.append(grades, [0, -2])) for passages, grades in qrels]
  assert evaluate(rows, _names(name), more).means == found


@every_metric
def test_a_query_without_judgements_is_left_out(task, name):
  evaluate, rows, qrels, _ = task
  found = evaluate(rows, _names(name))
  more = evaluate(np.concatenate([rows[:1], rows]), _names(name), [([], []), *qrels])
  assert more.means == pytest.approx(found.means, rel=1e-12)
  assert more.judged == found.judged == QUERIES
  for values in more.per_query.values():
    assert np.isnan(values[0])
    assert not np.isnan(values[1:]).any()


@every_mean
def test_a_judged_query_without_a_relevant_passage_counts_0(task, name):
  evaluate, rows, qrels, _ = task
  found = evaluate(rows, _names(name))
  more = evaluate(np.concatenate([rows[:1], rows]), _names(name), [(rows[0, :2], [0, -1]), *qrels])
  assert more.means == pytest.approx(
    {full: mean * QUERIES / (QUERIES + 1) for full, mean in found.means.items()}, rel=1e-12
  )


@having("of_means")
def test_in_a_ratio_of_means_a_query_without_a_relevant_passage_changes_nothing(task, name):
  """It counts 0 in both means."""
  evaluate, rows, qrels, _ = task
  found = evaluate(rows, _names(name))
  more = evaluate(np.concatenate([rows[:1], rows]), _names(name), [(rows[0, :2], np.array([0, -1])), *qrels])
  assert more.means == pytest.approx(found.means, rel=1e-12)
  assert {values[0] for values in more.per_query.values()} == {0.0}


@every_metric
def test_a_relevant_passage_that_nobody_can_find_is_never_good(task, name):
  """For means that divide by what is relevant it is bad."""
  evaluate, rows, qrels, _ = task
  before = evaluate(rows, _names(name)).means
  more = [(np.append(passages, LOST), np.append(grades, 9)) for passages, grades in qrels]
  for full, mean in evaluate(rows, _names(name), more).means.items():
    if name in ("p", "mrr", "success"):
      assert mean == before[full]
    elif name != "rprec":  # looks one rank deeper, which may find one
      assert mean < before[full]


@having("deeper")
def test_a_deeper_cutoff_is_never_worse(task, name):
  evaluate, rows, _, _ = task
  values = np.stack(list(evaluate(rows, _names(name)).per_query.values()))
  assert np.all(np.diff(values, axis=0) >= 0)
  assert np.any(np.diff(values, axis=0) > 0)


@every_metric
def test_a_relevant_result_moved_up_is_never_worse(task, name):
  evaluate, rows, qrels, level = task
  before = evaluate(rows, _names(name)).per_query
  moved = rows.copy()
  for row, (passages, grades) in zip(moved, qrels, strict=True):
    worth = _worth((passages, grades), name, level)
    hits = np.flatnonzero(np.isin(row, passages[worth == worth.max()]))
    if len(hits) and hits[-1]:
      row[[hits[-1] - 1, hits[-1]]] = row[[hits[-1], hits[-1] - 1]]
  assert np.any(moved != rows)
  for full, values in evaluate(moved, _names(name)).per_query.items():
    assert np.all(values >= before[full] - 1e-12)


@every_metric
def test_a_cutoff_below_the_depth_is_the_metric_of_the_cut_ranking(task, name):
  evaluate, rows, _, _ = task
  for full in _names(name, whole=False):
    cut = int(full.partition("@")[2])
    assert evaluate(rows[:, :cut], [full]).means == evaluate(rows, [full]).means
