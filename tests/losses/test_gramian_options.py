"""Mistakes in the options of the gravities, their schedules and priors: each is said, and none trains on in silence."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.losses import gramian, gramian_prior
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.matryoshka import matryoshka
from retrieval_jax.losses.schedules import decay, ramp, stage
from retrieval_jax.losses.weighted_sum import weighted_sum
from tests.gramian_batches import gravity_batch, start, step

# Without the checks of types, as gin's values come.
sogram, sagram = inspect.unwrap(gramian.sogram), inspect.unwrap(gramian.sagram)
constant, popularity, low_rank = map(
  inspect.unwrap, (gramian_prior.constant, gramian_prior.popularity, gramian_prior.low_rank)
)
falling, line = inspect.unwrap(decay), inspect.unwrap(ramp)
ROW = np.ones((1, 2), np.float32)


@pytest.mark.parametrize(
  "schedule, value, at",
  [
    (decay(initial=5.0, steps=10), "5", 0),
    (decay(initial=0.0, steps=10), "0", 0),
    (stage(start=3), "0", 0),
    (ramp(start=0, end=100, initial=0.1, final=1.5), "1.5", 100),
    (optax.linear_schedule(0.1, -0.1, 1000), "-0.1", 1000),
    (lambda step: jnp.where(step < 5, 0.1, jnp.nan), "nan", 10),
  ],
)
def test_a_schedule_of_alpha_is_tried_when_the_loss_is_made(schedule, value, at):
  with pytest.raises(
    UserError,
    match=rf"sogram: the schedule of alpha gives {value} at step {at}; expected .* above 0 and at most 1",
  ):
    gramian.sogram(alpha=schedule)


def test_alpha_may_start_at_1_and_end_at_0():
  """What falls to 0 at the end of the training is tried beyond it."""
  for schedule in (decay(initial=1.0, steps=10), optax.cosine_decay_schedule(0.1, 1000)):
    gramian.sogram(alpha=schedule)


@pytest.mark.parametrize("batches", ["lagged", "in_batch", "two"])
@pytest.mark.parametrize("value", [1.5, 0.0, -0.5, np.nan])
@pytest.mark.parametrize("how", ["harmonic", "debiased", "zero"])
def test_a_wrong_alpha_of_a_later_step_is_seen_in_its_loss(batches, value, how):
  """In the step that would update with it, before it is in any checkpoint; the metric tells that it is alpha."""
  loss = gramian.sogram(alpha=lambda step: jnp.where(step == 2, value, 0.5), batches=batches, start=how)
  state, batch, seen = start(loss, 2), gravity_batch(ROW, ROW), []
  for _ in range(3):
    output, state = step(loss, state, batch, estimation=batch)
    seen.append((np.isfinite(output.loss), np.isfinite(output.metrics["alpha"])))
  assert seen == [(True, True), (True, True), (False, False)]
  evaluated = loss.apply({}, start(loss, 2)._replace(step=jnp.int32(2)), batch, rng=None, train=False)[0]
  assert np.isfinite(evaluated.loss) == (batches != "in_batch")


@pytest.mark.parametrize("name", ["sogram", "sagram", "batch_gravity"])
@pytest.mark.parametrize("within", ["alone", "in a sum", "in a matryoshka"])
def test_a_prior_of_other_data_is_refused_before_training(name, within):
  prior = gramian_prior.low_rank(np.ones((30, 2)), np.ones((7, 2)))
  loss = getattr(gramian, name)(prior=prior)
  if within != "alone":
    loss = weighted_sum({"gravity": (1.0, loss)})
  if within == "in a matryoshka":
    loss = matryoshka(loss, dims=(4, 2))

  def init(queries, passages):
    jax.eval_shape(lambda: start(loss, 4, DataSizes(queries, passages)))

  init(30, 7)
  for queries, passages, message in (
    (60, 7, "30 rows of query factors, the training's data have 60 queries"),
    (20, 7, "30 rows of query factors, the training's data have 20 queries"),
    (30, 8, "7 rows of passage factors, the training's data have 8 passages"),
  ):
    with pytest.raises(UserError, match=f"{name}: the prior has {message}; expected one row for each"):
      init(queries, passages)


def test_priors_of_no_rows_of_their_own_fit_all_data():
  for prior in (gramian_prior.constant(0.1), gramian_prior.popularity(2.0)):
    start(gramian.sogram(prior=prior), 2, DataSizes(3, 5))


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: constant("x"), "prior constant: value is 'x'; expected a finite number"),
    (lambda: constant(True), "prior constant: value is True; expected a finite number"),
    (lambda: constant(np.ones(2)), r"prior constant: value is array\(\[1., 1.\]\); expected a finite number"),
    (lambda: popularity(None), "prior popularity: scale is None; expected a finite number"),
    (
      lambda: low_rank([[1.0], [1.0, 2.0]], np.ones((3, 1))),
      r"prior low_rank: query .*[Ee]xpected numbers \[rows, f\]",
    ),
    (lambda: low_rank(None, np.ones((3, 1))), r"prior low_rank: query .*[Ee]xpected numbers \[rows, f\]"),
    (lambda: falling(initial="5", steps=10), "decay: initial is '5'.*expected finite numbers"),
    (lambda: falling(initial=0.1, steps=None), "decay: .*steps is None.*expected finite numbers"),
    (lambda: falling(initial=0.1, steps=1, power="1"), "decay: .*power is '1'.*expected finite numbers"),
    (lambda: line(start=0, end=2, initial="0", final=1.0), "ramp: initial is '0'; expected a finite number"),
    (
      lambda: line(start=0, end=None, initial=0.0, final=1.0),
      "ramp: start is 0, end is None; expected whole",
    ),
    (lambda: sagram(project="no"), "sagram: project is 'no'; expected True or False"),
    (lambda: sagram(project=0), "sagram: project is 0; expected True or False"),
    (lambda: sogram(start=["zero"]), r"sogram: start is \['zero'\]; expected one of"),
    (lambda: sogram(alpha=None), "sogram: alpha is None; expected a number above 0"),
  ],
)
def test_what_is_no_number_is_refused(make, message):
  with pytest.raises(UserError, match=message):
    make()


@pytest.mark.parametrize(
  "content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\x04\x00{'a(", b"1.0 2.0\n"]
)
def test_a_file_that_is_no_array_is_named(tmp_path, content):
  path = tmp_path / "factors.npy"
  path.write_bytes(content)
  with pytest.raises(UserError, match=r"prior low_rank: passage .*factors.npy: cannot be read as .*\(.npy\)"):
    gramian_prior.low_rank(np.ones((3, 1)), path)


def test_an_archive_of_arrays_is_no_array(tmp_path):
  np.savez(tmp_path / "factors.npz", a=np.ones((3, 1)))
  with pytest.raises(UserError, match=r"query .*factors.npz.*expected numbers \[rows, f\]"):
    gramian_prior.low_rank(tmp_path / "factors.npz", np.ones((3, 1)))
