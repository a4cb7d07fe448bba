"""Cutting a batch into microbatches: who goes with whom, and what is averaged over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.microbatches import accumulate, cut, joined
from retrieval_jax.records import Batch, LossOutput
from retrieval_jax.step_options import StepOptions

# Four queries with one hard negative each: passage 10 + i is query i's own, 20 + i its hard negative.
ROWS = np.arange(4, dtype=np.int32)
PASSAGES = np.array([10, 11, 12, 13, 20, 21, 22, 23], np.int32)
BATCH = Batch(
  query_tokens=ROWS[:, None] + 1,
  passage_tokens={"id": PASSAGES[:, None]},
  query_rows=ROWS,
  passage_rows=PASSAGES,
  positives=PASSAGES[:4, None],
  weights=np.array([1, 2, 3, 0], np.float32),
  targets=np.array([0, 1, 2, 3], np.float32),
  teacher_scores=(100 * ROWS[:, None] + PASSAGES[None, :]).astype(np.float32),
)


def test_hard_negatives_go_with_their_queries():
  parts = cut(BATCH, 2)
  assert parts.query_rows.tolist() == [[0, 1], [2, 3]]
  assert np.asarray(parts.query_tokens).tolist() == [[[1], [2]], [[3], [4]]]
  assert parts.passage_rows.tolist() == [[10, 11, 20, 21], [12, 13, 22, 23]]
  assert np.asarray(parts.passage_tokens["id"]).tolist() == [
    [[10], [11], [20], [21]],
    [[12], [13], [22], [23]],
  ]
  assert parts.positives.tolist() == [[[10], [11]], [[12], [13]]]
  assert parts.weights.tolist() == [[1, 2], [3, 0]]
  assert np.asarray(parts.targets).tolist() == [[0, 1], [2, 3]]


def test_teacher_scores_keep_the_microbatchs_own_passages():
  assert np.asarray(cut(BATCH, 2).teacher_scores).tolist() == [
    [[10, 11, 20, 21], [110, 111, 120, 121]],
    [[212, 213, 222, 223], [312, 313, 322, 323]],
  ]


def test_every_shard_gives_a_part_of_its_rows_to_each_microbatch():
  parts = cut(BATCH, 2, shards=2)
  assert parts.query_rows.tolist() == [[0, 2], [1, 3]]
  assert parts.passage_rows.tolist() == [[10, 12, 20, 22], [11, 13, 21, 23]]


def test_without_hard_negatives_and_optional_fields():
  plain = BATCH._replace(passage_tokens=ROWS[:, None], passage_rows=ROWS, targets=None, teacher_scores=None)
  parts = cut(plain, 4)
  assert parts.passage_rows.tolist() == [[0], [1], [2], [3]]
  assert parts.targets is None
  assert parts.teacher_scores is None


def last_weight(state: jax.Array, batch: Batch, rng: jax.Array) -> tuple:
  """A pass whose gradient is the first query's row, whose state counts in base 10 which microbatches it saw."""
  del rng
  row = jnp.asarray(batch.query_rows)[0].astype(jnp.float32)
  return (
    {"g": row},
    LossOutput(10 * row, {"m": row + 1}),
    10 * state + 1 + jnp.asarray(batch.query_rows)[0],
    {"rows": jnp.asarray(batch.query_rows)},
  )


def test_the_mean_is_weighted_by_examples_and_the_state_goes_through_in_order():
  gradient, output, state, queries = accumulate(last_weight, jnp.int32(0), BATCH, jax.random.key(0), count=2)
  assert float(gradient["g"]) == (3 * 0 + 3 * 2) / 6
  assert float(output.loss) == 10 * (3 * 0 + 3 * 2) / 6
  assert float(output.metrics["m"]) == (3 * 1 + 3 * 3) / 6
  assert int(state) == 13  # first row 0, then row 2
  assert queries["rows"].tolist() == [0, 1, 2, 3]


def test_values_of_queries_come_back_in_the_order_of_the_batch():
  assert joined(cut(BATCH, 2, shards=2).query_rows, shards=2).tolist() == [0, 1, 2, 3]
  assert joined(cut(BATCH, 4).query_rows).tolist() == [0, 1, 2, 3]


def test_a_batch_of_padding_gives_zero():
  padding = BATCH._replace(weights=np.zeros(4, np.float32))
  gradient, output, _, _ = accumulate(last_weight, jnp.int32(0), padding, jax.random.key(0), count=2)
  assert float(gradient["g"]) == 0
  assert float(output.loss) == 0


def test_each_microbatch_has_keys_of_its_own():
  def draw(state: jax.Array, batch: Batch, rng: jax.Array) -> tuple:
    del batch
    return {}, LossOutput(jnp.zeros(()), {}), jnp.roll(state, 1).at[0].set(jax.random.uniform(rng)), {}

  rng = jax.random.key(3)
  _, _, drawn, _ = accumulate(draw, jnp.zeros(2), BATCH, rng, count=2)
  expected = [jax.random.uniform(jax.random.fold_in(rng, j)) for j in (1, 0)]
  assert np.array_equal(drawn, np.stack(expected))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (
      StepOptions(microbatches=3),
      r"TRAIN_MICROBATCHES=3 does not divide the 4 examples of a data shard \(BATCH_SIZE=8, 2 shards\). "
      "Nearest valid values: 2 or 4",
    ),
    (StepOptions(microbatches=9), "Nearest valid values: 4"),
    (StepOptions(microbatches=0), "TRAIN_MICROBATCHES=0: expected a whole number of at least 1"),
    (StepOptions(chunks=1.5), "TRAIN_CHUNKS=1.5: expected a whole number of at least 1"),  # pyright: ignore[reportArgumentType]  (a user's mistake)
    (StepOptions(max_nonfinite_steps=-1), "MAX_NONFINITE_STEPS=-1: expected a whole number of at least 0"),
  ],
)
def test_numbers_that_cannot_be(options, message):
  with pytest.raises(UserError, match=message):
    options.check(8, 2)


def test_what_is_printed_at_the_start():
  assert StepOptions().describe(8, 2) == []
  assert StepOptions(chunks=3).describe(32, 2) == [
    "each side is encoded in 3 chunks of 6 queries a shard and their passages: "
    "the gradient of all 32 examples, one more forward pass"
  ]
  shrinks, clamped, encoded = StepOptions(chunks=7, microbatches=2).describe(16, 2)
  assert "the pool of negatives shrinks from 16 to 8 examples; TRAIN_CHUNKS" in shrinks
  assert StepOptions(chunks=3).describe(16, 4)[:1] == [
    "TRAIN_CHUNKS=3 does not divide the 4 queries of a shard"
  ]
  assert clamped == "TRAIN_CHUNKS=7 is more than the 4 queries of a shard: one a chunk"
  assert encoded.startswith("each side is encoded in 4 chunks of 1 queries a shard")
  assert StepOptions(max_nonfinite_steps=2).describe(8, 1) == [
    "up to 2 steps that are not finite are left out"
  ]
