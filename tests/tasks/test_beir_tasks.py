"""The Tasks beir_*: what they declare, where they look, and SciFact as it is published."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from task_files import judgements, write

from retrieval_jax.data.benchmarks import FORUMS, ROOT_VARIABLE, check_counts
from retrieval_jax.data.features import registered
from retrieval_jax.data.task_source import TaskSource, import_tasks
from retrieval_jax.errors import UserError


def toy(folder: pathlib.Path, split: str = "test", pairs: tuple[str, ...] = ("q\ta\t1",)) -> pathlib.Path:
  write(
    folder / "corpus.jsonl", {"_id": "a", "title": "red", "text": "a"}, {"_id": "q", "title": "", "text": "b"}
  )
  write(folder / "queries.jsonl", {"_id": "q", "text": "red ?"}, {"_id": "r", "text": "not judged"})
  write(folder / f"qrels/{split}.tsv", "query-id\tcorpus-id\tscore", *pairs)
  return folder


def test_every_task_declares_itself():
  import_tasks()
  tasks = {name: task for name, task in registered().items() if name.startswith("beir_")}
  assert len(tasks) == 17 + 12  # CQADupStack is its forums
  assert [name for name, task in tasks.items() if task.info.drop_identical] == ["beir_arguana", "beir_quora"]
  for name, task in tasks.items():
    assert task.info.metrics[0] == "ndcg@10", name
    assert task.info.relevant_from == 1, name
    assert (task.info.template, task.info.passage_length) == ("{title} {text}", 512), name
    assert "licence" in task.info.source, name
    assert task.info.counts["test"] > 0, name
    assert {"test", "corpus"} <= set(task.splits), name
  queries = [tasks[f"beir_cqadupstack_{forum}"].info.counts["test"] for forum in FORUMS]
  assert sum(queries) == 13_145  # as published for all of CQADupStack


@pytest.mark.parametrize(
  "task, splits",
  [
    ("beir_nfcorpus", ["train", "dev", "test"]),
    ("beir_scifact", ["train", "test"]),
    ("beir_quora", ["dev", "test"]),
    ("beir_trec_covid", ["test"]),
    ("beir_cqadupstack_gis", ["test"]),
  ],
)
def test_splits(task: str, splits: list[str]):
  assert list(TaskSource(task).splits()) == [*splits, "corpus"]


@pytest.mark.parametrize(
  "task, folder",
  [
    ("beir_trec_covid", "beir/trec-covid"),
    ("beir_trec_covid", "trec-covid"),
    ("beir_trec_covid", "trec_covid"),
    ("beir_webis_touche2020", "beir/webis-touche2020"),
    ("beir_cqadupstack_android", "beir/cqadupstack/android"),
    ("beir_bioasq", "bioasq"),
  ],
)
def test_the_places_that_are_looked_at(task: str, folder: str, root: pathlib.Path, read):
  toy(root / folder)
  data = read(task, "test")
  assert judgements(data) == {"q": {"a": 1}}
  assert list(data.passages.ids) == ["a", "q"]  # titles are joined by the model's template
  assert str(root / folder / "corpus.jsonl") in data.files


@pytest.mark.parametrize(
  "task, message",
  [
    ("beir_scifact", r"scifact is not here: looked at \S*/data/beir/scifact, \S*/data/scifact\. Get it with `python "
     "scripts/download_beir.py --names scifact`"),
    ("beir_cqadupstack_tex", "download_beir.py --names cqadupstack`"),
    ("beir_robust04", "download_beir.py --names robust04`"),
  ],
)  # fmt: skip
def test_nothing_is_there(task: str, message: str, root: pathlib.Path, read):
  with pytest.raises(UserError, match=message):
    read(task, "test")


def test_a_split_that_this_copy_lacks(root: pathlib.Path, read):
  toy(root / "beir/nq")
  with pytest.raises(
    UserError, match=r"beir_nq: \S*/nq has judgements for test, and none for train: put train\.tsv into"
  ):
    read("beir_nq", "train")


def test_a_corpus_of_another_version_is_refused(root: pathlib.Path, read):
  """As webis-touche2020's second version under the judgements of its first."""
  toy(root / "beir/webis-touche2020", pairs=tuple(f"q\t{p}\t1" for p in ("a", "q", "gone")))
  with pytest.raises(
    UserError, match=r"1 of 3 judgements name passages that the corpus lacks .*of another version"
  ):
    read("beir_webis_touche2020", "test")


def test_scifact_as_it_is_published(data_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch, read):
  monkeypatch.setenv(ROOT_VARIABLE, str(data_dir))
  data = read("beir_scifact", "test")
  assert check_counts(data) == []
  assert (len(data.judged), data.passages.num_rows, len(data.relevance.grades)) == (300, 5183, 339)


def test_naming_tasks_reads_no_file_and_loads_no_tensorflow():
  script = """
    import sys
    from retrieval_jax.data.features import registered
    from retrieval_jax.data.task_source import TaskSource, import_tasks
    import_tasks()
    for name, task in registered().items():
      TaskSource(name, task.splits[0]).info, TaskSource(name).splits()
    assert len(registered()) >= 40
    assert not {"tensorflow", "seqio", "tensorflow_datasets", "jax"} & set(sys.modules)
  """
  environment = os.environ | {ROOT_VARIABLE: "/nonexistent", "RETRIEVAL_JAX_CACHE": "/nonexistent"}
  subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, env=environment)
