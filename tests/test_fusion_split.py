import numpy as np
import pytest

from retrieval_jax.classifiers import LabelClassifiers
from retrieval_jax.data import features
from retrieval_jax.data.file_sources import BeirFolder
from retrieval_jax.errors import UserError
from retrieval_jax.fusion_file import FittedFusion, save_fusion
from retrieval_jax.fusion_split import check_training_points, fitting_source, warn_if_seen
from retrieval_jax.linear_fusion import LinearFusion
from tests.data.toy_source import ListSource

PAIRS = [features.pair(f"q{i}", "a", f"p{i}", "b") for i in range(3)]
SOURCE = ListSource(
  {"train": PAIRS, "held_out": PAIRS[:1], "test": PAIRS, "corpus": [features.passage("p0", "b")]}
)


def test_the_source_at_the_split(capsys):
  assert fitting_source(SOURCE) == SOURCE._replace(split="held_out")
  assert capsys.readouterr().err == ""


def test_a_source_that_is_a_dataclass(tmp_path):
  (tmp_path / "qrels").mkdir()
  (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n", encoding="utf-8")
  (tmp_path / "corpus.jsonl").write_text("", encoding="utf-8")
  (tmp_path / "queries.jsonl").write_text("", encoding="utf-8")
  source = BeirFolder(str(tmp_path))
  assert fitting_source(source, split="dev") == BeirFolder(str(tmp_path), "dev")


def test_train_is_warned_of_and_replaces_no_fusion_of_other_points(tmp_path, capsys):
  assert fitting_source(SOURCE, split="train").split == "train"
  found = _classifiers(tmp_path)
  check_training_points(found, "held_out")
  assert capsys.readouterr().err == ""
  fitted = FittedFusion(LinearFusion(np.ones(3), 0.0), np.zeros(1, np.float32))
  check_training_points(found, "train")
  save_fusion(found, fitted, {"split": "train"})
  check_training_points(found, "train")
  said = capsys.readouterr().err
  assert (
    said.count("warning: FUSION_SPLIT=train: the classifiers were trained to give these very labels") == 2
  )
  save_fusion(found, fitted, {"split": "held_out"})
  check_training_points(found, "held_out")
  with pytest.raises(UserError, match=r"fusion\.npz was fitted on the split 'held_out'.*or delete that file"):
    check_training_points(found, "train")
  (tmp_path / "fusion.json").unlink()
  with pytest.raises(UserError, match="was fitted on the split 'unknown'"):
    check_training_points(found, "train")


def test_test_is_refused():
  with pytest.raises(UserError, match="FUSION_SPLIT=test: a fusion that has seen the labels of the test"):
    fitting_source(SOURCE, split="test")


def test_a_split_that_is_not_there():
  few = SOURCE._replace(data={"train": PAIRS, "test": PAIRS, "corpus": []})
  with pytest.raises(UserError, match=r"its splits: train, test\. Hold training points out with --gin\.HELD"):
    fitting_source(few)
  with pytest.raises(UserError, match=r"no split 'hold_out'.*; did you mean 'held_out'"):
    fitting_source(SOURCE, split="hold_out")
  with pytest.raises(UserError, match=r"its splits: train, held_out, test\. Correct FUSION_SPLIT"):
    fitting_source(SOURCE, split="xyz")
  with pytest.raises(UserError, match="no split 'corpus'"):
    fitting_source(SOURCE, split="corpus")


def test_what_is_no_source():
  with pytest.raises(UserError, match="list: expected one task to fit a fusion on"):
    fitting_source([SOURCE])  # pyright: ignore[reportArgumentType]


def _classifiers(tmp_path, **record):
  return LabelClassifiers(np.zeros((1, 2), np.float32), 1, tmp_path, record)  # pyright: ignore[reportArgumentType]


def test_classifiers_of_other_points_are_warned_of(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("RETRIEVAL_JAX_CACHE", str(tmp_path))
  plain = SOURCE._replace(data={"train": PAIRS})
  warn_if_seen(_classifiers(tmp_path, split="train", points=3), plain)
  warn_if_seen(_classifiers(tmp_path, split="train"), plain)  # of before points were noted
  warn_if_seen(_classifiers(tmp_path, split="dev", points=9), plain)
  assert "warning" not in capsys.readouterr().err
  warn_if_seen(_classifiers(tmp_path, split="train", points=4), plain)
  said = capsys.readouterr().err
  assert "the classifiers were trained on 4 points of toy/train, which has 3 now" in said
  assert "with the same HELD_OUT" in said
