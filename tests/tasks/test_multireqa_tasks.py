"""The Tasks multireqa_*: two contexts in the layouts of MRQA and MultiReQA, each split with its own candidates."""

import gzip
import json
import pathlib

import pytest
from task_files import judgements

from retrieval_jax.data.benchmarks import check_counts, check_files
from retrieval_jax.data.features import registered
from retrieval_jax.data.task_source import TaskSource, import_tasks
from retrieval_jax.errors import UserError


def compressed(path: pathlib.Path, *records: object) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))


def write_split(
  root: pathlib.Path, split: str, *, name: str = "SQuAD", texts: str = "dev", home: str = "multireqa"
):
  """Writes the context "Red is a. Blue is b." with the questions x (answer "a") and y (answer "b")."""
  qids = [f"{split}x", f"{split}y"]
  answers = [{"text": "a", "char_spans": [[7, 7]]}], [{"text": "b", "char_spans": [[18, 18]]}]
  compressed(
    root / f"mrqa/{texts}/{name}.jsonl.gz",
    {"header": {"dataset": name}},
    {
      "context": "Red is a. Blue is b.",
      "qas": [
        {"qid": qid, "question": f"what is {qid} ?", "detected_answers": found}
        for qid, found in zip(qids, answers, strict=True)
      ],
    },
  )
  prefix = f"{name}_{qids[0]}/{qids[1]}"
  compressed(
    root / f"{home}/{split}/{name}/candidates.json.gz",
    {"candidate_id": f"{prefix}/_0", "response_start": 0, "response_end": 9},
    {"candidate_id": f"{prefix}/_1", "response_start": 10, "response_end": 20},
  )


def test_a_split_searches_its_own_candidates(root: pathlib.Path, read):
  write_split(root, "train", texts="train")
  write_split(root, "dev")
  dev = read("multireqa_squad", "dev")
  assert list(dev.passages.texts) == ["Red is a.", "Blue is b."]
  assert list(dev.passages.ids) == ["SQuAD_devx/devy/_0", "SQuAD_devx/devy/_1"]
  assert judgements(dev) == {"devx": {"SQuAD_devx/devy/_0": 1}, "devy": {"SQuAD_devx/devy/_1": 1}}
  train = read("multireqa_squad", "train")
  assert list(train.passages.ids) == ["SQuAD_trainx/trainy/_0", "SQuAD_trainx/trainy/_1"]
  with pytest.raises(UserError, match="multireqa_squad has no split 'test'; its splits of pairs: train, dev"):
    read("multireqa_squad", "test")


def test_a_training_set_that_comes_later_leaves_the_candidates_of_dev_as_they_are(root: pathlib.Path, read):
  write_split(root, "dev")
  before = read("multireqa_squad", "dev").passages.fingerprint
  write_split(root, "train", texts="train")
  assert read("multireqa_squad", "dev").passages.fingerprint == before


@pytest.mark.parametrize("home", ["multireqa", "multireqa/data", "MultiReQA/data"])
def test_dev_needs_no_train(root: pathlib.Path, read, home: str):
  write_split(root, "dev", home=home)
  assert read("multireqa_squad", "dev").num_examples == 2


def test_what_is_evaluated_alone_is_mrqas_dev(root: pathlib.Path, read):
  write_split(root, "test", name="TextbookQA", texts="dev")
  data = read("multireqa_textbookqa", "test")
  assert data.num_examples == 2
  assert check_counts(data) == [
    "multireqa_textbookqa, split test: 2 passages, but 71,147 are published: published results were measured on other "
    "data."
  ]
  (message,) = check_files(data)
  assert "mrqa/dev/TextbookQA.jsonl.gz: its md5 is" in message


def test_nothing_is_there(root: pathlib.Path, read):
  with pytest.raises(
    UserError, match=r"multireqa/test/DuoRC is not here: .*download_multireqa.py --names duorc`"
  ):
    read("multireqa_duorc", "test")


def test_every_task_declares_itself():
  import_tasks()
  tasks = {name: task for name, task in registered().items() if name.startswith("multireqa_")}
  assert len(tasks) == 9
  for name, task in tasks.items():
    splits = [split for split in task.splits if not split.startswith("corpus")]
    assert splits in (["train", "dev"], ["test"]), name
    assert f"corpus_{splits[-1]}" in task.info.counts, name
    assert task.info.metrics[:2] == ("p@1", "mrr"), name
    assert len(task.info.checksums) == len(splits), name


def test_splits_in_the_order_they_are_declared():
  assert list(TaskSource("multireqa_nq").splits()) == ["train", "dev", "corpus_train", "corpus_dev"]
