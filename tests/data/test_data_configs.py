"""configs/data/*.gin: they parse, and their macros build the sources that they say."""

import dataclasses
import pathlib
import sys
import types

import gin
import pytest

from retrieval_jax.data.dataset import TaskSource
from retrieval_jax.data.debian_packages import DebianPackages
from retrieval_jax.data.extreme import ExtremeFolder
from retrieval_jax.data.file_sources import BeirFolder, JsonlPairs, TsvPairs
from retrieval_jax.data.link_graph import LinkGraph
from retrieval_jax.data.planted_graph import PlantedGraph
from retrieval_jax.data.reqa import ReqaFolder
from retrieval_jax.data.tfds_source import TfdsPairs

CONFIGS = pathlib.Path(__file__).parents[2] / "configs/data"


def program(train=None, evaluation=None, other=None):
  """Stands for a program: it takes the macros as arguments."""
  return train, evaluation, other


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch):
  module = types.ModuleType("gin_test_program")
  module.program = program
  monkeypatch.setitem(sys.modules, "gin_test_program", module)
  monkeypatch.setattr(program, "__module__", "gin_test_program")

  def parse(name: str, *bindings: str):
    text = f"""
      from __gin__ import dynamic_registration
      import gin_test_program
      include "{CONFIGS / name}"
      gin_test_program.program.train = %TRAIN_DATA
      gin_test_program.program.evaluation = %EVAL_DATA
    """
    with gin.unlock_config():
      gin.clear_config()
      gin.add_config_file_search_path(str(CONFIGS.parent))
      gin.parse_config("\n".join(line.strip() for line in text.splitlines()))
      gin.parse_config(bindings)
      gin.finalize()
    return gin.get_configurable("gin_test_program.program")()[:2]

  yield parse
  with gin.unlock_config():
    gin.clear_config()


def test_pydocs(build):
  assert build("pydocs.gin") == (TaskSource("pydocs", "train"), TaskSource("pydocs", "test"))


def test_a_task_by_its_name(build):
  bindings = ("MIXTURE_OR_TASK_NAME = 'beir_nfcorpus'", "TRAIN_SPLIT = 'dev'")
  assert build("task.gin", *bindings) == (
    TaskSource("beir_nfcorpus", "dev"),
    TaskSource("beir_nfcorpus", "test"),
  )
  with pytest.raises(ValueError, match="MIXTURE_OR_TASK_NAME"):
    build("task.gin")


def test_tfds(build):
  train, evaluation = build(
    "tfds.gin", "TFDS_NAME = 'squad'", "COLUMNS = {'query': 'question', 'passage': 'context'}"
  )
  columns = {"query": "question", "passage": "context"}
  assert train == TfdsPairs("squad", columns=columns)
  assert evaluation == TfdsPairs("squad", "validation", columns)


def test_msmarco(build):
  expected = (TaskSource("msmarco_passage", "train"), TaskSource("msmarco_passage", "dev_small"))
  assert build("msmarco.gin") == expected


def test_another_task_split_and_module(build):
  bindings = ("MIXTURE_OR_TASK_NAME = 'mine'", "EVAL_SPLIT = 'dev'", "TASK_MODULE = 'my.tasks'")
  mine = TaskSource("mine", "train", "my.tasks")
  assert build("pydocs.gin", *bindings) == (mine, mine._replace(split="dev"))


def test_scoped_bindings_do_not_leak(build):
  train, evaluation = build("pydocs.gin", "train/dataset.TaskSource.version = '2'")
  assert (train.version, evaluation.version) == ("2", "")


def test_tsv(build):
  train, evaluation = build("tsv.gin", "DATA_PATH = 'a.tsv'", "TEST_PATH = 'b.tsv'")
  assert train == TsvPairs("a.tsv", "train", test="b.tsv")
  assert evaluation == TsvPairs("a.tsv", "test", test="b.tsv")


def test_jsonl(build):
  bindings = ("DATA_PATH = 'a.jsonl'", "EVAL_SPLIT = 'dev'", "DEV_PATH = 'b.jsonl'", "CORPUS_PATH = 'c.tsv'")
  train, evaluation = build("jsonl.gin", *bindings, "COLUMNS = {'query': 'question'}")
  assert train == JsonlPairs("a.jsonl", dev="b.jsonl", columns={"query": "question"}, corpus="c.tsv")
  assert evaluation == dataclasses.replace(train, split="dev")


def test_beir_folder(build):
  assert build("beir_folder.gin", "DATA_PATH = 'd'") == (BeirFolder("d", "train"), BeirFolder("d", "test"))


def test_reqa(build):
  train, evaluation = build("reqa.gin", "DATA_PATH = 'd'", "WITH_CONTEXT = True")
  assert (train, evaluation) == (ReqaFolder("d", "train", True), ReqaFolder("d", "test", True))


def test_link_graph(build):
  assert build("link_graph.gin", "DATA_PATH = 'd'") == (LinkGraph("d", "train"), LinkGraph("d", "test"))


@pytest.mark.parametrize("name", ["tsv.gin", "jsonl.gin", "beir_folder.gin", "reqa.gin", "link_graph.gin"])
def test_the_path_is_required(build, name: str):
  with pytest.raises(ValueError, match="DATA_PATH"):
    build(name)


def test_extreme_classification(build, tmp_path):
  bindings = (f"DATA_PATH = '{tmp_path}'", "HELD_OUT = 0.05", "EVAL_SPLIT = 'held_out'", "TITLES_ONLY = True")
  train, evaluation = build(
    "extreme.gin", *bindings, "PROPENSITY = (0.6, 2.6)", "ENCODING = 'latin-1'", "UNESCAPE = False"
  )
  assert train == ExtremeFolder(str(tmp_path), "train", 0.05, True, "latin-1", False, (0.6, 2.6))
  assert evaluation == dataclasses.replace(train, split="held_out")
  assert build("extreme.gin", f"DATA_PATH = '{tmp_path}'")[1] == ExtremeFolder(str(tmp_path), "test")


def test_graphs_that_are_made(build):
  features = (
    "retrieval_jax.data.link_graph.LinkGraph.features = ('id',)"  # as a model of feature bags asks for them
  )
  bindings = (
    "DATA_PATH = 'x'",
    "DEV_SHARE = 0.05",
    "TEST_SHARE = 0.2",
    "SPLIT_SEED = 3",
    "EVAL_SPLIT = 'dev'",
  )
  train, evaluation = build("debian_packages.gin", *bindings, features)
  for source, split in ((train, "train"), (evaluation, "dev")):
    assert dataclasses.replace(source, graph=LinkGraph) == DebianPackages("x", split, 0.05, 0.2, 3)
    assert source.graph(path="y", split=split) == LinkGraph("y", split, ("id",))
  bindings = ("PLANTED_ITEMS = 500", "PLANTED_TOPICS = 20", "PLANTED_SEED = 7")
  train, evaluation = build("planted_graph.gin", *bindings, features)
  for source, split in ((train, "train"), (evaluation, "test")):
    assert dataclasses.replace(source, graph=LinkGraph) == PlantedGraph(split, 500, 20, 7)
    assert source.graph(path="y", split=split) == LinkGraph("y", split, ("id",))
