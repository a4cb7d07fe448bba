"""Losses that are sums, as a user trains with them: a schedule across a resume, and mistakes in the gin file."""

import json

import pytest

from retrieval_jax.errors import UserError


def test_the_second_stage_of_pair_begins_at_its_step_whether_or_not_the_run_was_resumed(
  launch, tiny, tmp_path
):
  folder = tmp_path / "run"
  flags = (
    *(flag for flag in tiny if "losses/" not in flag),
    "--gin_file=losses/pair_two_stage.gin",
    "--gin.PAIR_STEPS=3",
    f"--gin.MODEL_DIR={folder}",
  )
  for steps in (2, 4):
    launch("train", *flags, f"--gin.TRAIN_STEPS={steps}")
  lines = (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  log = [json.loads(line) for line in lines]
  assert [record["pair/weight"] for record in log] == [1, 1, 1, 0]
  assert [record["softmax/weight"] for record in log] == [0, 0, 0, 1]
  assert [record["softmax/gradient_share"] for record in log] == [0, 0, 0, 1]
  for record in log:
    now = "pair" if record["pair/weight"] else "softmax"
    assert record["loss"] == pytest.approx(record[f"{now}/loss"])


@pytest.mark.parametrize(
  "terms, message",
  [
    (
      '{"a": (1.0, @in_batch.samtone)}',
      "error: weighted_sum: 'a': expected a Loss after the weight, got <function",
    ),
    ('{"a": (@schedules.stage, @in_batch.samtone())}', "@name() the schedule"),
  ],
)
def test_a_reference_without_parentheses(process, tiny, tmp_path, terms, message):
  """In a process of its own: here the type checker of the tests would refuse first."""
  (tmp_path / "mine.gin").write_text(
    "from __gin__ import dynamic_registration\n"
    "from retrieval_jax.losses import in_batch\n"
    "from retrieval_jax.losses import schedules\n"
    "from retrieval_jax.losses import weighted_sum\n"
    "LOSS = @weighted_sum.weighted_sum()\n"
    f"weighted_sum.weighted_sum.terms = {terms}\n",
    encoding="utf-8",
  )
  flags = (*tiny, "--gin.TRAIN_STEPS=1", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  done = process("train", *flags, f"--gin_file={tmp_path / 'mine.gin'}")
  assert done.returncode == 2
  assert message in done.stderr
  assert not (tmp_path / "run").exists()


def test_going_on_with_a_loss_of_another_state_says_so(launch, tiny, tmp_path):
  """The checkpoint is whole; only the loss is another one."""
  flags = (*tiny, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  launch("train", *flags, "--gin.TRAIN_STEPS=1")
  with pytest.raises(
    UserError, match=r"checkpoint 1 is of another loss than the configured one:\n  step: only in"
  ):
    launch("train", *flags, "--gin_file=losses/samtone_orthogonal.gin", "--gin.TRAIN_STEPS=2")
  with pytest.raises(UserError, match=r"checkpoint 1 is of another loss.*\n  loss/log_scale: only in"):
    launch("train", *flags, "--gin_file=softmax/learned_temperature.gin", "--gin.TRAIN_STEPS=2")
  launch("train", *flags, "--gin.TRAIN_STEPS=2")
