"""What an example is, and what a loss that estimates gets besides: options that fit and options that do not."""

import pytest

from retrieval_jax.data.marginals import MarginalOptions
from retrieval_jax.errors import UserError
from retrieval_jax.example_options import ExampleOptions
from retrieval_jax.losses import in_batch

PLAIN = in_batch.in_batch_softmax()
TWO_BATCHES = PLAIN._replace(requires=frozenset({"estimation", "marginals"}))


def test_the_estimation_batch_is_as_large_as_the_batch_unless_said():
  assert ExampleOptions().estimation_size(PLAIN, 8) == 0
  assert ExampleOptions().estimation_size(TWO_BATCHES, 8) == 8
  assert ExampleOptions(estimation_batch_size=32).estimation_size(TWO_BATCHES, 8) == 32


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_sizes_that_are_refused(size):
  with pytest.raises(UserError, match=f"ESTIMATION_BATCH_SIZE={size}: expected a whole number"):
    ExampleOptions(estimation_batch_size=size).estimation_size(TWO_BATCHES, 8)


def test_a_setting_that_the_loss_would_not_notice_is_refused():
  with pytest.raises(UserError, match="ESTIMATION_BATCH_SIZE=4, but the loss estimates from the batch"):
    ExampleOptions(estimation_batch_size=4).estimation_size(PLAIN, 8)
  data = None  # not looked at
  with pytest.raises(UserError, match="PASSAGE_MARGINAL='uniform', but the loss has no gravity"):
    ExampleOptions(marginals=MarginalOptions(passage="uniform")).of(data, PLAIN)  # pyright: ignore[reportArgumentType]  (None stands for any data)
  with pytest.raises(UserError, match=r"TRAIN_EXAMPLES='pair': expected 'queries' or 'pairs'.*pairs"):
    ExampleOptions("pair").of(data, PLAIN)  # pyright: ignore[reportArgumentType]  (None stands for any data)
