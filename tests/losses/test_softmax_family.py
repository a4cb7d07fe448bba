"""PAIR, the joint softmax and the options of the softmax family: hand-computed values, published values, gradients."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import in_batch_softmax, joint_softmax, pair, samtone
from retrieval_jax.losses.softmax_terms import Options
from retrieval_jax.losses.temperature import learned
from tests.embedded_batches import embedded_batch

# The published losses by the blocks of their one denominator.
JOINT = {
  "gte_joint4": ("query_passage", "passage_query", "query_query", "passage_passage"),
  "q2d_d2q_joint": ("query_passage", "passage_query"),
  "q2d_d2d_joint": ("query_passage", "passage_passage"),
}
Q = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
P = np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])
S, QQ, PP = Q @ P.T, Q @ Q.T, P @ P.T
OTHERS = ~np.eye(3, dtype=bool)


def _output(loss, batch, params=None):
  params = loss.init(jax.random.key(0), embed_dim=2, data=DataSizes(1, 1))[0] if params is None else params
  return loss.apply(params, {}, batch, rng=None, train=True)[0]


def _value(loss, batch=None):
  return float(_output(loss, embedded_batch(Q, P) if batch is None else batch).loss)


def _cases(oracles):
  record = json.loads((oracles / "losses.json").read_text())
  q, p, n = (np.array(record[key]) for key in ("q", "p", "hard_neg_one_per_query"))
  sides = {"pairs": (q, p), "with_hard_neg": (q, np.concatenate([p, n])), "swapped_roles_pairs": (p, q)}
  return [(value, *sides[value["case"]]) for value in record["values"]]


@pytest.mark.parametrize("name", JOINT)
@pytest.mark.parametrize("rows_per_tile", [0, 3])
def test_oracle_of_one_denominator(oracles, name, rows_per_tile):
  """Values and gradients by the embeddings, at scales 1, 20 and 100, with and without a hard negative per query."""
  checked = 0
  with jax.enable_x64(True):
    for expected, q, p in _cases(oracles):
      if expected["loss"] != name:
        continue
      options = Options(rows_per_tile=rows_per_tile)
      loss = joint_softmax(blocks=JOINT[name], temperature=1 / expected["scale"], options=options)
      batch = embedded_batch(q, p)

      def value(query, passage, loss=loss, batch=batch):
        return _output(loss, batch._replace(query=query, passage=passage)).loss

      got, (by_q, by_p) = jax.value_and_grad(value, (0, 1))(jnp.asarray(q), jnp.asarray(p))
      assert float(got) == pytest.approx(expected["value"], rel=1e-6)
      # The published gradients are of the inner product of these unit vectors; ours are of the cosine: tangential.
      want = np.concatenate([np.array(side) for side in expected["grads_wrt_inputs"]])
      rows = np.concatenate([q, p])
      tangential = want - np.sum(want * rows, axis=1, keepdims=True) * rows
      np.testing.assert_allclose(np.concatenate([by_q, by_p]), tangential, rtol=1e-6, atol=1e-6)
      checked += 1
  assert checked == 9


@pytest.mark.parametrize("rows_per_tile", [0, 3])
def test_oracle_of_hardness(oracles, rows_per_tile):
  names = {"in_batch_negatives": "in_batch", "hard_negatives": "hard", "all_negatives": "all"}
  found = [(e, q, p) for e, q, p in _cases(oracles) if "hardness_mode" in e]
  assert len(found) == 3
  with jax.enable_x64(True):
    for expected, q, p in found:
      options = Options(
        hardness=expected["hardness_strength"],
        hardness_of=names[expected["hardness_mode"]],
        rows_per_tile=rows_per_tile,
      )
      loss = in_batch_softmax(temperature=1 / expected["scale"], bidirectional=False, options=options)
      assert _value(loss, embedded_batch(q, p)) == pytest.approx(expected["value"], rel=1e-9)


def test_the_weight_of_hardness_has_no_gradient():
  """d/ds log(1 + e^(s + a s' - pos)) at s' = s with s' held fixed: sigmoid(s + a s - pos), not (1 + a) times that."""
  loss = in_batch_softmax(temperature=1.0, bidirectional=False, options=Options(hardness=2.0))
  q, p = np.eye(2), np.array([[0.8, 0.6], [0.6, 0.8]])

  def value(passage):
    return _output(loss, embedded_batch(q, p)._replace(passage=passage)).loss

  by_passage = jax.grad(value)(jnp.asarray(p))
  share = 1 / (1 + np.exp(-(0.6 + 2 * 0.6 - 0.8)))
  # Both rows alike: passage 0 is the positive of query 0 and the negative of query 1; half the mean each.
  want = (-share * q[0] + share * q[1]) / 2
  want -= (want @ p[0]) * p[0]
  np.testing.assert_allclose(by_passage[0], want, rtol=1e-5)


def test_pair_is_a_mean_of_the_softmax_and_the_passage_centric_loss():
  forward = np.mean(np.log(np.exp(S).sum(axis=1)) - np.diag(S))
  backward = np.mean(np.log(np.exp(S).sum(axis=0)) - np.diag(S))
  own = np.exp(np.diag(S))
  centric = np.mean(-np.log(own / (own + (np.exp(PP) * OTHERS).sum(axis=1))))
  assert _value(pair(alpha=0.1, temperature=1.0)) == pytest.approx(
    0.9 * (forward + backward) / 2 + 0.1 * centric, rel=1e-6
  )
  assert _value(pair(alpha=0.3, temperature=1.0, bidirectional=False)) == pytest.approx(
    0.7 * forward + 0.3 * centric, rel=1e-6
  )
  assert _value(pair(alpha=1.0, temperature=1.0)) == pytest.approx(centric, rel=1e-6)
  assert _value(pair(alpha=0.0)) == pytest.approx(_value(in_batch_softmax()), rel=1e-6)


def test_pair_as_the_samtone_paper_prints_it():
  """Without the positive in the denominator; a row without negatives has nothing to say."""
  centric = np.mean(np.log((np.exp(PP) * OTHERS).sum(axis=1)) - np.diag(S))
  loss = pair(alpha=1.0, temperature=1.0, positive_in_denominator=False)
  assert _value(loss) == pytest.approx(centric, rel=1e-6)
  assert _value(loss, embedded_batch(Q, P, passage_rows=[7, 7, 7])) == 0


def test_equal_passages_are_no_passage_centric_negatives():
  own, pp = np.exp(np.diag(S)), np.exp(PP)
  expected = [-np.log(own[0] / (own[0] + pp[0, 2])), -np.log(own[1] / (own[1] + pp[1, 2]))]
  expected.append(-np.log(own[2] / (own[2] + pp[2, 0] + pp[2, 1])))
  loss = pair(alpha=1.0, temperature=1.0)
  assert _value(loss, embedded_batch(Q, P, passage_rows=[7, 7, 9])) == pytest.approx(
    np.mean(expected), rel=1e-6
  )


def test_label_smoothing_by_hand():
  """-sum_c y_c log softmax_c with y = 1 - e + e/4 for the positive and e/4 for each of three further candidates."""
  e = 0.2
  p = np.concatenate([P, [[0.0, 1.0]], np.zeros((2, 2))])  # one hard negative for query 0, two empty slots
  batch = embedded_batch(Q, p, passage_rows=[10, 11, 12, 13, -1, -1])
  s = Q @ p[:4].T
  log_p = s - np.log(np.exp(s).sum(axis=1, keepdims=True))
  expected = np.mean(-(1 - e) * np.diag(log_p) - e * log_p.mean(axis=1))
  loss = in_batch_softmax(temperature=1.0, bidirectional=False, options=Options(label_smoothing=e))
  assert _value(loss, batch) == pytest.approx(expected, rel=1e-6)


def test_logit_margin_by_hand():
  """The positive's cosine less .3, at temperature .5."""
  z = S / 0.5 - np.diag([0.3 / 0.5] * 3)
  expected = np.mean(np.log(np.exp(z).sum(axis=1)) - np.diag(z))
  loss = in_batch_softmax(temperature=0.5, bidirectional=False, options=Options(logit_margin=0.3))
  assert _value(loss) == pytest.approx(expected, rel=1e-6)


def test_score_margin_drops_what_beats_the_positive_by_more():
  """Cosines of query 0: .8 its own, 1.0 and .6; of query 1: .6 its own, .96 and 1.0; of query 2: .8, .6 and 0."""
  kept = {
    0.1: [[2], [], [0, 1]],  # 1.0 > .8 + .1; .96 > .6 + .1
    0.25: [[1, 2], [], [0, 1]],
    0.5: [[1, 2], [0, 2], [0, 1]],
  }
  for margin, negatives in kept.items():
    expected = [
      np.log(np.exp(S[i, i]) + sum(np.exp(S[i, j]) for j in js)) - S[i, i] for i, js in enumerate(negatives)
    ]
    loss = in_batch_softmax(temperature=1.0, bidirectional=False, options=Options(score_margin=margin))
    assert _value(loss) == pytest.approx(np.mean(expected), rel=1e-6, abs=1e-7)
    assert float(_output(loss, embedded_batch(Q, P)).metrics["negatives"]) == pytest.approx(
      np.mean([len(js) for js in negatives])
    )


def test_score_margin_in_the_same_tower():
  """Queries 0 and 1 have the cosine .6, 1 and 2 .8, 0 and 2 0; positives .8, .6, .8: margin .1 drops .8 beside .6."""
  forward = [
    np.exp(S[0, 2]) + np.exp(QQ[0, 1]) + np.exp(QQ[0, 2]),
    np.exp(QQ[1, 0]),
    np.exp(S[2, 0]) + np.exp(S[2, 1]) + np.exp(QQ[2, 0]) + np.exp(QQ[2, 1]),
  ]
  expected = [np.log(np.exp(S[i, i]) + forward[i]) - S[i, i] for i in range(3)]
  loss = samtone(temperature=1.0, bidirectional=False, options=Options(score_margin=0.1))
  assert _value(loss) == pytest.approx(np.mean(expected), rel=1e-6)


def test_own_hard_negatives_alone_by_hand():
  """Two slots a query, the second query's second one empty; other queries' passages take no part."""
  q, p = Q[:2], P[:2]
  n = np.array([[0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [0.0, 0.0]])
  batch = embedded_batch(q, np.concatenate([p, n]), passage_rows=[10, 11, 12, 13, 14, -1])
  scores = [[0.8, 0.0, -1.0], [0.6, -0.8]]
  expected = np.mean([np.log(np.exp(row).sum()) - row[0] for row in scores])
  options = Options(in_batch_negatives=False)
  loss = in_batch_softmax(temperature=1.0, bidirectional=False, options=options)
  assert _value(loss, batch) == pytest.approx(expected, rel=1e-6)
  assert float(_output(loss, batch).metrics["negatives"]) == pytest.approx(1.5)


def test_learned_temperature_starts_where_it_is_told_and_has_a_gradient():
  loss, fixed = (in_batch_softmax(temperature=t, bidirectional=False) for t in (learned(initial=0.2), 0.2))
  params, _ = loss.init(jax.random.key(0), embed_dim=2, data=DataSizes(1, 1))
  assert float(params["log_scale"]) == pytest.approx(np.log(5))
  assert _value(loss) == pytest.approx(_value(fixed), rel=1e-6)
  assert float(_output(loss, embedded_batch(Q, P)).metrics["temperature"]) == pytest.approx(0.2)
  got = jax.grad(lambda params: _output(loss, embedded_batch(Q, P), params).loss)(params)["log_scale"]
  # d/d log(scale) of mean_i [log sum_j e^(scale s_ij) - scale s_ii].
  weights = np.exp(5 * S) / np.exp(5 * S).sum(axis=1, keepdims=True)
  assert float(got) == pytest.approx(5 * np.mean((weights * S).sum(axis=1) - np.diag(S)), rel=1e-5)


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_is_a_share(alpha):
  with pytest.raises(UserError, match=r"pair: alpha is .*\[0, 1\]"):
    pair(alpha=alpha)


@pytest.mark.parametrize(
  ("blocks", "message"),
  [
    (("query_passage", "query_qury"), r"unknown block 'query_qury'; did you mean 'query_query'\? Known"),
    (("query_query",), "query_passage among them"),
    (("query_passage", "query_passage"), "a list of different blocks"),
    ("query_passage", "a list of different blocks"),
  ],
)
def test_blocks_of_one_denominator(blocks, message):
  with pytest.raises(UserError, match=message):
    joint_softmax(blocks=blocks)
