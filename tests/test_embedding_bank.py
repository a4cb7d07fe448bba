import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax.embedding_bank import EmbeddingBank
from retrieval_jax.errors import UserError


def rows(*numbers: int) -> np.ndarray:
  return np.array(numbers)


def test_a_step_is_written_when_the_next_one_is_held(tmp_path):
  bank = EmbeddingBank(tmp_path, 4, 2, dtype="float32")
  bank.hold(rows(2, -1), jnp.array([[1.0, 2.0], [9.0, 9.0]]))
  assert not bank.embeddings.any()
  bank.hold(rows(0, 3), jnp.array([[3.0, 4.0], [5.0, 6.0]]))
  assert bank.embeddings.tolist() == [[0, 0], [0, 0], [1, 2], [0, 0]]
  bank.flush()
  assert bank.embeddings.tolist() == [[3, 4], [0, 0], [1, 2], [5, 6]]
  assert bank.missing.tolist() == [False, True, False, False]


def test_the_freshest_embedding_stays(tmp_path):
  bank = EmbeddingBank(tmp_path, 2, 2)
  bank.hold(rows(1), jnp.array([[1.0, 2.0]]))
  bank.hold(rows(1), jnp.array([[3.0, 4.0]]))
  bank.flush()
  assert bank.embeddings.dtype == np.float16
  assert bank.embeddings[1].tolist() == [3, 4]


def test_what_is_not_finite_leaves_the_row_as_it_was(tmp_path):
  bank = EmbeddingBank(tmp_path, 2, 2)
  bank.hold(rows(0, 1), jnp.array([[1.0, 2.0], [3.0, 4.0]]))
  bank.hold(rows(0, 1), jnp.array([[jnp.nan, 2.0], [5.0, 6.0]]))
  bank.flush()
  assert bank.embeddings.tolist() == [[1, 2], [5, 6]]


def test_values_beyond_float16_are_refused(tmp_path):
  bank = EmbeddingBank(tmp_path, 2, 2)
  with pytest.raises(UserError, match=r"example 1 has values that float16 cannot hold.*BANK_DTYPE='float32'"):
    bank.write(rows(0, 1), np.array([[1.0, 2.0], [7e4, 0.0]]))
  assert not bank.embeddings.any()


def test_a_copy_brings_back_the_very_rows(tmp_path):
  bank = EmbeddingBank(tmp_path / "a", 3, 2)
  bank.hold(rows(1), jnp.array([[0.1, 0.2]]))
  bank.save(tmp_path / "copy.npy")
  bank.write(rows(1), np.array([[7.0, 8.0]]))
  other = EmbeddingBank(tmp_path / "b", 3, 2)
  other.load(tmp_path / "copy.npy")
  assert other.embeddings.tolist() == [[0, 0], np.float16([0.1, 0.2]).tolist(), [0, 0]]
  assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "copy.npy"]


def test_a_copy_of_other_examples_or_none_is_refused(tmp_path):
  EmbeddingBank(tmp_path, 3, 2).save(tmp_path / "copy.npy")
  other = EmbeddingBank(tmp_path / "b", 4, 2)
  with pytest.raises(UserError, match=r"a bank of \(3, 2\) float16, and the training wants \(4, 2\) float16"):
    other.load(tmp_path / "copy.npy")
  with pytest.raises(UserError, match=r"cannot be read.*CLUSTER_EMBEDDINGS='encode'"):
    other.load(tmp_path / "none.npy")
  (tmp_path / "empty.npy").write_bytes(b"")
  with pytest.raises(UserError, match="cannot be read"):
    other.load(tmp_path / "empty.npy")
  (tmp_path / "half.npy").write_bytes((tmp_path / "copy.npy").read_bytes()[:60])
  with pytest.raises(UserError, match="cannot be read"):
    other.load(tmp_path / "half.npy")


def test_two_trainings_do_not_share_a_bank(tmp_path):
  bank = EmbeddingBank(tmp_path, 2, 2)
  bank.write(rows(0), np.array([[1.0, 2.0]]))
  with pytest.raises(UserError, match=r"another training keeps its embedding bank there.*BANK_PATH"):
    EmbeddingBank(tmp_path, 9, 2)
  assert bank.embeddings[0].tolist() == [1, 2]
  bank.close()
  assert not EmbeddingBank(tmp_path, 2, 2).embeddings.any()


def test_the_room_of_a_bank_is_taken_at_once(tmp_path):
  EmbeddingBank(tmp_path, 1000, 64)
  file = tmp_path / "bank.npy"
  assert file.stat().st_blocks * 512 >= 1000 * 64 * 2


def test_a_place_that_cannot_be_a_folder(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"cannot be made.*BANK_PATH"):
    EmbeddingBank(tmp_path / "file", 4, 2)


def test_settings_that_cannot_be(tmp_path):
  with pytest.raises(UserError, match="BANK_DTYPE='bfloat16'"):
    EmbeddingBank(tmp_path, 4, 2, dtype="bfloat16")
  with pytest.raises(UserError, match=r"needs \d+.\d GB and .* GB are free"):
    EmbeddingBank(tmp_path, 10**12, 1024)
