import json

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses.in_batch import in_batch_softmax, samtone
from tests.embedded_batches import embedded_batch


def _value(loss, batch):
  return float(loss.apply({}, {}, batch, rng=None, train=True)[0].loss)


def _metrics(loss, batch):
  return {name: float(v) for name, v in loss.apply({}, {}, batch, rng=None, train=True)[0].metrics.items()}


# --- reference values ---------------------------------------------------------------------------------------------

ORACLE_LOSSES = {
  "in_batch": lambda t: in_batch_softmax(temperature=t, bidirectional=False, score=scoring.dot),
  "samtone_query_side": lambda t: samtone(temperature=t, bidirectional=False, score=scoring.dot),
  "symmetric_mean_of_two": lambda t: in_batch_softmax(temperature=t, score=scoring.dot),
}


def _oracle_inputs(record, case):
  q, p, n = (np.array(record[key]) for key in ("q", "p", "hard_neg_one_per_query"))
  return {"pairs": (q, p), "with_hard_neg": (q, p, n), "swapped_roles_pairs": (p, q)}[case]


@pytest.mark.parametrize("case", ["pairs", "with_hard_neg", "swapped_roles_pairs"])
@pytest.mark.parametrize("scale", [1.0, 20.0, 100.0])
@pytest.mark.parametrize("name", ORACLE_LOSSES)
@pytest.mark.parametrize("bits", [32, 64])
def test_oracle_values_and_gradients(oracles, bits, name, scale, case):
  record = json.loads((oracles / "losses.json").read_text())
  (expected,) = [
    v
    for v in record["values"]
    if (v["loss"], v["case"], v["scale"]) == (name, case, scale) and "hardness_mode" not in v
  ]
  dtype, tolerance = (np.float64, 1e-6) if bits == 64 else (np.float32, 1e-5)
  with jax.enable_x64(bits == 64):
    inputs = [jnp.asarray(x, dtype) for x in _oracle_inputs(record, case)]
    loss = ORACLE_LOSSES[name](1 / scale)

    def value(query, *passages):
      return loss.apply({}, {}, embedded_batch(query, jnp.concatenate(passages)), rng=None, train=True)[
        0
      ].loss

    got, gradients = jax.value_and_grad(value, argnums=tuple(range(len(inputs))))(*inputs)
    assert got.dtype == dtype

    np.testing.assert_allclose(got, expected["value"], rtol=tolerance, atol=tolerance)
    for gradient, want in zip(gradients, expected["grads_wrt_inputs"], strict=True):
      np.testing.assert_allclose(gradient, np.array(want), rtol=tolerance, atol=tolerance * scale)


def _oracle_pairs(oracles, dtype=np.float64):
  record = json.loads((oracles / "losses.json").read_text())
  return [np.array(record[key], dtype) for key in ("q", "p", "hard_neg_one_per_query")]


def _named_value(oracles, loss, case, scale):
  record = json.loads((oracles / "losses.json").read_text())
  (found,) = [
    v["value"]
    for v in record["values"]
    if (v["loss"], v["case"], v["scale"]) == (loss, case, scale) and "hardness_mode" not in v
  ]
  return found


@pytest.mark.parametrize("scale", [1.0, 20.0, 100.0])
def test_oracle_sides_are_means_of_the_two_directions(oracles, scale):
  """Each side of SamToNe, by hand from the one-way values with the roles as they are and swapped."""
  with jax.enable_x64(True):
    q, p, _ = _oracle_pairs(oracles)
    plain, plain_back = (
      _named_value(oracles, "in_batch", case, scale) for case in ("pairs", "swapped_roles_pairs")
    )
    query, passage = (
      _named_value(oracles, "samtone_query_side", case, scale) for case in ("pairs", "swapped_roles_pairs")
    )
    expected = {
      "query": (query + plain_back) / 2,
      "passage": (plain + passage) / 2,
      "both": (query + passage) / 2,
    }
    for side, value in expected.items():
      assert _value(samtone(temperature=1 / scale, side=side), embedded_batch(q, p)) == pytest.approx(
        value, rel=1e-6
      )


def test_oracle_hard_negatives_stay_out_of_passage_to_query(oracles):
  with jax.enable_x64(True):
    q, p, n = _oracle_pairs(oracles)
    expected = (
      _named_value(oracles, "samtone_query_side", "with_hard_neg", 20.0)
      + _named_value(oracles, "in_batch", "swapped_roles_pairs", 20.0)
    ) / 2
    assert _value(samtone(temperature=0.05), embedded_batch(q, np.concatenate([p, n]))) == pytest.approx(
      expected, rel=1e-6
    )


def test_oracle_t5x_sums_the_directions(oracles):
  """T5X Retrieval's default loss and accuracy at scale 100, hard negatives included."""
  t5x = np.load(oracles / "sde_t5_1_1_f32.npz")
  batch = embedded_batch(t5x["left_emb"], t5x["right_emb"])
  loss = in_batch_softmax(temperature=0.01)
  # 66.247 from float32 embeddings: a cosine's last bit is 6e-6 of a logit here.
  assert 2 * _value(loss, batch) == pytest.approx(float(t5x["loss_bidir_eval"]), abs=1e-4)
  assert _metrics(loss, batch)["accuracy"] == pytest.approx(2 / 6)
  one_way = in_batch_softmax(temperature=0.01, bidirectional=False)
  assert _value(one_way, batch) == pytest.approx(float(t5x["loss_left_only"]), abs=1e-4)


def test_oracle_t5x_off_diagonal_positives(oracles):
  """Equal labels are masked from query to passage: there by label, here by passage row."""
  t5x = np.load(oracles / "sde_t5_1_1_f32.npz")
  batch = embedded_batch(t5x["left_emb"], t5x["right_emb"], passage_rows=t5x["offdiag_ref_labels"])
  loss = in_batch_softmax(temperature=0.01, bidirectional=False)
  assert _value(loss, batch) == pytest.approx(float(t5x["loss_left_offdiag_masked"]), abs=1e-4)


# --- masks --------------------------------------------------------------------------------------------------------


def test_repeated_query_unmasked_and_masked_oracle(oracles):
  """A repeated query is a same-tower logit of 1 / temperature: 8.8436 where the plain loss is 6.1648 (scale 20)."""
  with jax.enable_x64(True):
    q, p, _ = _oracle_pairs(oracles)
    q, p = q[[0, 0, 2]], p[:3]
    batch = embedded_batch(q, p, query_rows=[7, 7, 2])
    plain = in_batch_softmax(temperature=0.05, bidirectional=False, mask_false_negatives=False)
    unmasked = samtone(temperature=0.05, bidirectional=False, mask_false_negatives=False)
    assert _value(plain, batch) == pytest.approx(6.1648, abs=5e-5)
    assert _value(unmasked, batch) == pytest.approx(8.8436, abs=5e-5)

    # By hand: queries 0 and 1 are one query with two answers, so 0 and 1 have only example 2 as a negative.
    s, qq = np.exp(20 * (q @ p.T)), np.exp(20 * (q @ q.T))
    expected = [
      -np.log(s[0, 0] / (s[0, 0] + s[0, 2] + qq[0, 2])),
      -np.log(s[1, 1] / (s[1, 1] + s[1, 2] + qq[1, 2])),
      -np.log(s[2, 2] / (s[2].sum() + qq[2, 0] + qq[2, 1])),
    ]
    masked = samtone(temperature=0.05, bidirectional=False)
    assert _value(masked, batch) == pytest.approx(np.mean(expected), rel=1e-9)
    assert _metrics(masked, batch)["negatives"] == pytest.approx((2 + 2 + 4) / 3)


@pytest.mark.parametrize("scale", [1.0, 20.0, 100.0])
def test_duplicate_positives_are_no_negatives(scale):
  """Both passages are the same: log 2 at any scale if that is not masked, and nothing to learn if it is."""
  batch = embedded_batch(np.eye(2), np.array([[0.6, 0.8], [0.6, 0.8]]), passage_rows=[5, 5])
  unmasked = in_batch_softmax(temperature=1 / scale, bidirectional=False, mask_false_negatives=False)
  assert _value(unmasked, batch) == pytest.approx(np.log(2), rel=1e-5)
  assert _value(in_batch_softmax(temperature=1 / scale), batch) == 0
  assert _value(samtone(temperature=1 / scale, side="both"), batch) == 0


def test_known_positives_are_no_negatives_in_either_direction():
  q = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
  p = np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])
  # Query 0 also has passage 11, which is query 1's.
  batch = embedded_batch(q, p, passage_rows=[10, 11, 12], positives=[[10, 11], [11, -1], [12, -1]])
  s, qq, pp = np.exp(q @ p.T), np.exp(q @ q.T), np.exp(p @ p.T)
  forward = [
    -np.log(s[0, 0] / (s[0, 0] + s[0, 2])),
    -np.log(s[1, 1] / s[1].sum()),
    -np.log(s[2, 2] / s[2].sum()),
  ]
  backward = [
    -np.log(s[0, 0] / s[:, 0].sum()),
    -np.log(s[1, 1] / (s[1, 1] + s[2, 1])),  # passage 11 answers query 0
    -np.log(s[2, 2] / s[:, 2].sum()),
  ]
  assert _value(in_batch_softmax(temperature=1.0), batch) == pytest.approx(
    (np.mean(forward) + np.mean(backward)) / 2, rel=1e-6
  )
  # Examples 0 and 1 share an answer, so neither is the other's same-tower negative.
  forward_both = [
    -np.log(s[0, 0] / (s[0, 0] + s[0, 2] + qq[0, 2])),
    -np.log(s[1, 1] / (s[1].sum() + qq[1, 2])),
    -np.log(s[2, 2] / (s[2].sum() + qq[2, 0] + qq[2, 1])),
  ]
  backward_both = [
    -np.log(s[0, 0] / (s[:, 0].sum() + pp[0, 2])),
    -np.log(s[1, 1] / (s[1, 1] + s[2, 1] + pp[1, 2])),
    -np.log(s[2, 2] / (s[:, 2].sum() + pp[2, 0] + pp[2, 1])),
  ]
  assert _value(samtone(temperature=1.0, side="both"), batch) == pytest.approx(
    (np.mean(forward_both) + np.mean(backward_both)) / 2, rel=1e-6
  )


def test_a_hard_negative_that_is_a_known_positive_is_masked():
  q = np.array([[1.0, 0.0], [0.0, 1.0]])
  p = np.array([[0.8, 0.6], [0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])
  batch = embedded_batch(q, p, passage_rows=[10, 11, 11, 12], positives=[[10, 12], [11, -1]])
  s = np.exp(q @ p.T)
  expected = [
    -np.log(s[0, 0] / (s[0, 0] + s[0, 1] + s[0, 2])),  # 12 answers query 0
    -np.log(s[1, 1] / (s[1, 1] + s[1, 0] + s[1, 3])),  # column 2 is query 1's own passage again
  ]
  loss = in_batch_softmax(temperature=1.0, bidirectional=False)
  assert _value(loss, batch) == pytest.approx(np.mean(expected), rel=1e-6)
  assert _metrics(loss, batch)["negatives"] == pytest.approx(2)


def test_rows_of_minus_one_equal_nothing():
  q, p = np.eye(3), np.eye(3)[[1, 2, 0]]
  anonymous = embedded_batch(
    q, p, query_rows=[-1] * 3, passage_rows=[-1] * 3, positives=-np.ones((3, 2), int)
  )
  assert _value(samtone(temperature=1.0), anonymous) == pytest.approx(
    _value(samtone(temperature=1.0), embedded_batch(q, p)), rel=1e-6
  )


def test_an_empty_hard_negative_slot_is_absent():
  """Fewer hard negatives than slots: -1 fills them, and the zero vector there is no negative."""
  q, p, n = np.eye(2), np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([[0.0, 1.0], [0.0, 0.0]])
  batch = embedded_batch(q, np.concatenate([p, n]), passage_rows=[10, 11, 12, -1])
  s = np.exp(q @ np.concatenate([p, n[:1]]).T)
  expected = np.mean([-np.log(s[i, i] / s[i].sum()) for i in range(2)])
  assert _value(in_batch_softmax(temperature=1.0, bidirectional=False), batch) == pytest.approx(
    expected, rel=1e-6
  )


def test_padding_with_garbage_is_as_if_absent():
  """Three examples padded to four equal the three, even with NaN in the padding; gradients too."""
  rng = np.random.default_rng(0)
  q, p, n = rng.normal(size=(3, 3, 5)).astype(np.float32)
  garbage = np.full((1, 5), np.nan, np.float32)
  small = embedded_batch(q, np.concatenate([p, n]))
  padded = embedded_batch(
    np.concatenate([q, garbage]),
    np.concatenate([p, garbage, n, garbage]),
    query_rows=[0, 1, 2, -1],
    passage_rows=[100, 101, 102, -1, 103, 104, 105, -1],
    weights=[1, 1, 1, 0],
  )
  loss = samtone(temperature=0.1, side="both")

  def value(query, passage, batch):
    return loss.apply({}, {}, batch._replace(query=query, passage=passage), rng=None, train=True)[0].loss

  want, (want_q, want_p) = jax.value_and_grad(value, (0, 1))(small.query, small.passage, small)
  got, (got_q, got_p) = jax.value_and_grad(value, (0, 1))(padded.query, padded.passage, padded)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  np.testing.assert_allclose(got_q, np.pad(want_q, ((0, 1), (0, 0))), rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(np.asarray(got_p)[[0, 1, 2, 4, 5, 6]], want_p, rtol=1e-5, atol=1e-7)
  assert np.all(np.asarray(got_p)[[3, 7]] == 0)


def test_weights_make_a_weighted_mean():
  q, p = np.eye(3), np.array([[0.8, 0.6, 0.0], [0.0, 0.8, 0.6], [0.6, 0.0, 0.8]])
  s = np.exp(q @ p.T)
  each = [-np.log(s[i, i] / s[i].sum()) for i in range(3)]
  loss = in_batch_softmax(temperature=1.0, bidirectional=False)
  assert _value(loss, embedded_batch(q, p, weights=[1, 2, 0.5])) == pytest.approx(
    np.average(each, weights=[1, 2, 0.5]), rel=1e-6
  )


# --- numerics, scale ----------------------------------------------------------------------------------------------


def test_both_directions_of_a_symmetric_batch_are_one():
  """Turning bidirectional on does not double the loss."""
  q = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
  values = [
    _value(in_batch_softmax(temperature=0.1, bidirectional=b), embedded_batch(q, q)) for b in (False, True)
  ]
  assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_cosines_that_bfloat16_would_merge_stay_distinct():
  """.999, .9975 and .996 at temperature .01: softmax [.384, .331, .285], not [.425, .288, .288]."""
  cosines = np.array([0.999, 0.9975, 0.996])
  passages = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
  query = np.array([[1.0, 0.0]] * 3)
  losses = [
    _value(
      in_batch_softmax(bidirectional=False),
      embedded_batch(query, passages[[i, *({0, 1, 2} - {i})]], weights=[1, 1e-12, 1e-12]),
    )
    for i in range(3)
  ]
  np.testing.assert_allclose(np.exp(-np.array(losses)), [0.384, 0.331, 0.285], atol=1e-3)


def test_zero_embeddings_have_a_finite_loss_and_gradient():
  batch = embedded_batch(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))
  loss = samtone(side="both")

  def value(query, passage):
    return loss.apply({}, {}, batch._replace(query=query, passage=passage), rng=None, train=True)[0].loss

  got, gradients = jax.value_and_grad(value, (0, 1))(batch.query, batch.passage)
  assert float(got) == pytest.approx(np.log(3), rel=1e-6)
  assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_with_every_negative_masked_is_zero(dtype):
  batch = embedded_batch(jnp.eye(3, dtype=dtype), jnp.eye(3, dtype=dtype), query_rows=[4, 4, 4])
  loss = samtone(side="both")
  output, _ = loss.apply({}, {}, batch, rng=None, train=True)
  assert output.loss.dtype == jnp.float32
  assert float(output.loss) == 0
  assert float(output.metrics["negatives"]) == 0
  assert float(output.metrics["accuracy"]) == 1


def test_a_tiny_loss_keeps_its_digits():
  """log(1 + e^-40): logsumexp minus the positive logit would round to 0."""
  batch = embedded_batch(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32))
  assert _value(in_batch_softmax(temperature=1 / 40), batch) == pytest.approx(np.exp(-40.0), rel=1e-4)


def test_metrics_of_the_negatives_and_the_temperature():
  batch = embedded_batch(np.eye(3), np.concatenate([np.eye(3), np.eye(3)[[1, 2, 0]]]))
  assert _metrics(in_batch_softmax(temperature=0.05), batch) == pytest.approx(
    # Every query is as near to a hard negative as to its own passage: not above all, so not accurate.
    {"accuracy": 0, "negatives": 2 + 3, "temperature": 0.05, "logit_scale": 20}
  )
  assert _metrics(samtone(temperature=0.05), batch)["negatives"] == pytest.approx(2 + 3 + 2)


def test_many_known_positives_build_no_cube():
  """q = p = 64, r = 512: no array of the compiled loss has q p r elements."""
  batch = embedded_batch(np.zeros((64, 4)), np.zeros((64, 4)), positives=np.zeros((64, 512), int))
  loss = in_batch_softmax()
  traced = jax.make_jaxpr(lambda b: loss.apply({}, {}, b, rng=None, train=True)[0].loss)(batch)

  def sizes(jaxpr):
    for equation in jaxpr.eqns:
      yield from (v.aval.size for v in equation.outvars)
      for inner in jax.extend.core.jaxprs_in_params(equation.params):
        yield from sizes(inner)

  assert max(sizes(traced.jaxpr)) <= 64 * 512


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [in_batch_softmax, samtone])
@pytest.mark.parametrize("temperature", [0, -0.01, float("nan")])
def test_temperature_must_be_positive(make, temperature):
  with pytest.raises(UserError, match=r"temperature is .*; it must be above 0.*scale 100 is"):
    make(temperature=temperature)


def test_unknown_side():
  with pytest.raises(UserError, match=r"unknown side 'pasage'; did you mean 'passage'\? Known"):
    samtone(side="pasage")


@pytest.mark.parametrize("side", ["passage", "both"])
def test_passage_side_needs_its_direction(side):
  with pytest.raises(UserError, match="Set bidirectional=True, or side='query'"):
    samtone(side=side, bidirectional=False)


def test_passages_must_be_a_multiple_of_the_queries():
  with pytest.raises(UserError, match="2 queries came with 3 passages"):
    _value(in_batch_softmax(), embedded_batch(np.eye(2), np.ones((3, 2))))
