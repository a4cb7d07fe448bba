"""What is kept, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from retrieval_jax.checkpoint_tables import difference
from retrieval_jax.checkpoints import CheckpointPolicy, Checkpoints
from retrieval_jax.errors import UserError
from retrieval_jax.train_state import TrainState
from scripts.soak.damage import WAYS


def state(value: float, width: int = 3) -> TrainState:
  params = {"model": {"kernel": jnp.full((2, width), float(value))}, "loss": {}}
  return TrainState(jnp.int32(int(value)), params, {}, ())


def abstract(tree):
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def target(width: int = 3):
  return abstract(state(0.0, width))


def test_keeps_the_newest_and_the_best_also_across_restarts(tmp_path):
  policy = CheckpointPolicy(period=1, keep_latest=2, best_metric="mrr")
  for step, score in [(1, 0.1), (2, 0.9), (3, 0.3), (4, 0.2), (5, 0.4)]:
    with Checkpoints(tmp_path, policy) as checkpoints:  # reopened for every step: a restart each time
      checkpoints.save(step, state(step), manifest={}, metrics={"mrr": score})
  with Checkpoints(tmp_path, policy) as checkpoints:
    assert checkpoints.steps() == [2, 4, 5]
    restored, step = checkpoints.restore_newest(target())
  assert step == 5
  np.testing.assert_array_equal(restored.params["model"]["kernel"], np.full((2, 3), 5.0))


def test_keeps_the_newest_without_a_metric(tmp_path):
  with Checkpoints(tmp_path, CheckpointPolicy(keep_latest=2)) as checkpoints:
    for step in (1, 2, 3):
      checkpoints.save(step, state(step), manifest={})
    checkpoints.wait()
    assert checkpoints.steps() == [2, 3]
    assert checkpoints.manifest(3)["parameters"]["model/kernel"] == [[2, 3], "float32"]


def test_looking_at_the_steps_during_a_save_keeps_no_more_of_them(tmp_path):
  with Checkpoints(tmp_path, CheckpointPolicy(keep_latest=2)) as checkpoints:
    for step in range(1, 6):
      checkpoints.save(step, state(step), manifest={})
      assert step - 3 not in checkpoints.steps()  # deleted before the save of step - 1 was over
    checkpoints.wait()
    assert checkpoints.steps() == [4, 5]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [1, 3])
def test_a_damaged_checkpoint_is_passed_over_also_where_the_best_is_kept(tmp_path, way, step):
  """The newest one, and the best one, which is an old one."""
  policy = CheckpointPolicy(keep_latest=2, best_metric="mrr")
  with Checkpoints(tmp_path, policy) as checkpoints:
    for saved, score in [(1, 0.9), (2, 0.1), (3, 0.2)]:
      checkpoints.save(saved, state(saved), manifest={}, metrics={"mrr": score})
  WAYS[way](tmp_path / f"checkpoint_{step}")
  with Checkpoints(tmp_path, policy) as checkpoints:
    restored = checkpoints.restore_newest(target())
    assert restored is not None
    assert restored[1] == (2 if step == 3 else 3)
    checkpoints.save(4, state(4), manifest={}, metrics={"mrr": 0.1})
    checkpoints.wait()
    assert checkpoints.steps()[-1] == 4


def test_damaged_scores_are_named_where_nothing_may_be_deleted(tmp_path):
  with Checkpoints(tmp_path, CheckpointPolicy(best_metric="mrr")) as checkpoints:
    checkpoints.save(1, state(1), manifest={}, metrics={"mrr": 0.5})
  (tmp_path / "checkpoint_1" / "metrics" / "metrics").write_bytes(b"")
  with pytest.raises(UserError, match=r"checkpoint_1/metrics/metrics is damaged. Delete it"):
    Checkpoints(tmp_path, read_only=True)


def test_no_checkpoint_is_none_to_resume_and_an_error_to_read(tmp_path):
  with Checkpoints(tmp_path) as checkpoints:
    assert checkpoints.restore_newest(target()) is None
  with (
    Checkpoints(tmp_path, read_only=True) as checkpoints,
    pytest.raises(UserError, match="no checkpoint here"),
  ):
    checkpoints.restore_params(target().params["model"])


def test_reads_the_model_alone_and_names_a_missing_step(tmp_path):
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(7, state(7), manifest={})
  with Checkpoints(tmp_path, read_only=True) as checkpoints:
    params, step = checkpoints.restore_params(target().params["model"])
    assert step == 7
    np.testing.assert_array_equal(params["kernel"], np.full((2, 3), 7.0))
    with pytest.raises(UserError, match=r"no checkpoint of step 8; there are \[7\]"):
      checkpoints.restore_params(target().params["model"], step=8)


def test_another_architecture_is_refused_with_the_difference(tmp_path):
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, state(1), manifest={})
    checkpoints.wait()
    with pytest.raises(
      UserError, match=r"(?s)another architecture.*model/kernel: checkpoint \(2, 3\) float32, model \(2, 4\)"
    ):
      checkpoints.restore_newest(target(width=4))


def test_nothing_readable_is_an_error_and_not_a_fresh_start(tmp_path):
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, state(1), manifest={})
  for path in sorted((tmp_path / "checkpoint_1").rglob("*")):
    if path.is_file() and "manifest" not in path.parts:
      path.write_bytes(b"")
  with Checkpoints(tmp_path) as checkpoints, pytest.raises(UserError, match="no checkpoint can be read"):
    checkpoints.restore_newest(target())


def test_difference_lists_both_directions():
  text = difference({"a": [[1], "float32"]}, {"b": [[2], "float32"]})
  assert text == "  a: only in the checkpoint (1,)\n  b: only in the model (2,)"


def trained(*terms: str, rows: int = 512, steps: tuple = ()) -> TrainState:
  """Terms without parameters, of which "gravity" has a cache of so many rows; and an optimizer of these steps."""
  states = {name: {"rows": jnp.zeros((rows, 2))} if name == "gravity" else {} for name in terms}
  loss_params = {name: {} for name in terms}
  params = {**state(1).params, "loss": loss_params}
  return state(1).replace(params=params, loss_state={"terms": states}, opt_state=steps)


SQUARED = trained("squared", "gravity", steps=(optax.EmptyState(),))


@pytest.mark.parametrize(
  "other, message",
  [
    (
      trained("samtone", "gravity", steps=(optax.EmptyState(),)),
      r"checkpoint 1 is of another loss than the configured one:\n"
      r"  loss/samtone: only in the model \(without arrays\)\n  loss/squared: only in the checkpoint \(without arrays\)\n",
    ),
    (
      trained("squared", "gravity", steps=(optax.EmptyState(), optax.EmptyState())),
      r"another optimizer than the configured one.*:\n  1: only in the model \(without arrays\)\n",
    ),
    (
      trained("squared", "gravity", rows=1024, steps=(optax.EmptyState(),)),
      r"checkpoint 1 has a loss with caches of another number of rows:\n"
      r"  terms/gravity/rows: checkpoint \(512, 2\) float32, model \(1024, 2\) float32\n"
      r"They hold a row for each row of the data.* the same data,.* another MODEL_DIR.*INITIAL_CHECKPOINT_PATH=/",
    ),
  ],
)
def test_what_differs_is_named_also_where_it_has_no_arrays(tmp_path, capsys, other, message):
  """The checkpoint is whole, and nothing calls it unreadable."""
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, SQUARED, manifest={})
  with Checkpoints(tmp_path) as checkpoints:
    with pytest.raises(UserError, match=message):
      checkpoints.restore_newest(abstract(other))
    assert "cannot be read" not in capsys.readouterr().err
    restored = checkpoints.restore_newest(abstract(SQUARED))
    assert restored is not None
    assert restored[1] == 1


def test_other_parameters_of_the_loss_are_no_other_architecture(tmp_path):
  learned = state(1).replace(params={**state(1).params, "loss": {"log_scale": jnp.zeros(())}})
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, state(1), manifest={})
    checkpoints.wait()
    with pytest.raises(UserError, match=r"of another loss.*:\n  loss/log_scale: only in the model \(\)"):
      checkpoints.restore_newest(abstract(learned))
