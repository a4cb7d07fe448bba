import numpy as np
import pytest

from retrieval_jax import batch_artefacts
from retrieval_jax.batch_artefacts import artefact, as_arrays, as_state, step_of, write_once
from retrieval_jax.errors import UserError

RECORD = {"seed": 0, "task_fingerprint": "a"}


def test_what_was_decided_once_is_not_decided_again(tmp_path):
  path = artefact(tmp_path, "clusters", 120)
  assert path.name == "clusters_00000120.npz"
  first = write_once(path, RECORD, lambda: {"members": np.array([2, 0, 1])})
  second = write_once(path, RECORD, lambda: pytest.fail("computed again"))
  assert first["members"].tolist() == second["members"].tolist() == [2, 0, 1]


def test_a_file_of_another_record_or_half_a_file_is_replaced(tmp_path):
  path = artefact(tmp_path, "clusters", 120)
  write_once(path, RECORD, lambda: {"members": np.array([2, 0, 1])})
  other = {**RECORD, "seed": 1}
  assert write_once(path, other, lambda: {"members": np.array([1])})["members"].tolist() == [1]
  path.write_bytes(path.read_bytes()[:50])
  assert write_once(path, other, lambda: {"members": np.array([3])})["members"].tolist() == [3]


def test_a_failure_leaves_nothing(tmp_path):
  path = artefact(tmp_path, "clusters", 120)
  with pytest.raises(ZeroDivisionError):
    write_once(path, RECORD, lambda: {"members": np.array([1 // 0])})
  assert not list(tmp_path.iterdir())


def test_a_file_that_a_checkpoint_names_must_be_there_and_whole(tmp_path):
  path = artefact(tmp_path, "clusters", 120)
  with pytest.raises(UserError, match=r"the batches of this checkpoint cannot be read.*copy MODEL_DIR"):
    batch_artefacts.read(path)
  write_once(path, RECORD, lambda: {"members": np.arange(1000)})
  path.write_bytes(path.read_bytes()[:500])
  with pytest.raises(UserError, match="the batches of this checkpoint cannot be read"):
    batch_artefacts.read(path)


def test_a_state_goes_through_a_file(tmp_path):
  state = {"cluster_size": 8, "since": 2, "members": np.array([1, 0], np.int32)}
  arrays = write_once(artefact(tmp_path, "clusters", 3), RECORD, lambda: as_arrays(state))
  back = as_state(arrays)
  assert back["cluster_size"] == 8
  assert back["since"] == 2
  assert back["members"].dtype == np.int32
  assert back["members"].tolist() == [1, 0]


def test_what_checkpoints_need_is_kept(tmp_path):
  for step in (0, 10, 20, 30):
    write_once(artefact(tmp_path, "clusters", step), RECORD, lambda: {"x": np.zeros(1)})
    np.save(tmp_path / f"bank_{step:08d}.npy", np.zeros(1))
  (tmp_path / "bank.npy").write_bytes(b"the working file")
  batch_artefacts.prune(
    tmp_path, "clusters", 20
  )  # a checkpoint after 20 batches was made with those of step 10
  assert [step_of(path) for path in sorted(tmp_path.glob("clusters*"))] == [10, 20, 30]
  batch_artefacts.prune(tmp_path, "clusters", 25)  # at step 25 those of step 20 are in force
  assert sorted(path.name for path in tmp_path.glob("clusters*")) == [
    "clusters_00000020.npz",
    "clusters_00000030.npz",
  ]
  batch_artefacts.prune(tmp_path, "bank", 20, earlier=0)
  assert sorted(path.name for path in tmp_path.glob("bank*")) == [
    "bank.npy",
    "bank_00000020.npy",
    "bank_00000030.npy",
  ]
  batch_artefacts.clear(tmp_path)
  assert not list(tmp_path.iterdir())
