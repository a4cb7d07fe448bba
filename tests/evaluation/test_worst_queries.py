"""Which queries are the worst, what is shown of them, and the file."""

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.worst_file import ShownPassage, WorstQuery, read_worst, write_worst
from retrieval_jax.worst_queries import LONGEST, worst_queries
from tests.evaluation.test_evaluation import IDS, Fixed, evaluator, write_beir

QRELS = [("a", "1", 1), ("b", "1", 1), ("c", "1", 1), ("d", "1", 2), ("d", "01", 1), ("e", "1", 0)]
RESULTS = {"a": ["01", "1e3", "1"], "b": ["01", "1"], "c": ["-0"], "d": ["1", "q"], "e": ["q"]}


def worst(folder, *, count=20, results=RESULTS, metric="ndcg@10"):
  result = evaluator(folder)._replace(metrics=(metric,)).evaluate(Fixed(results))
  values = result.per_query[metric]
  return worst_queries(result.ranking, result.data, metric=metric, values=values, count=count)


def test_the_lowest_values_come_first_and_queries_without_a_right_passage_not_at_all(tmp_path):
  found = worst(write_beir(tmp_path / "toy", QRELS))
  assert [query.query_id for query in found] == ["c", "a", "b", "d"]
  values = [0, 1 / np.log2(4), 1 / np.log2(3), 2 / (2 + 1 / np.log2(3))]
  assert [query.value for query in found] == pytest.approx(values)
  last = found[-1]
  assert (last.text, last.metric, last.relevant) == ("asks d", "ndcg@10", 2)
  assert last.retrieved == [
    ShownPassage("1", "text 0", 2, 1, 1.0),
    ShownPassage("q", "text 5", None, 2, pytest.approx(0.99)),
  ]
  assert last.right == [
    ShownPassage("1", "text 0", 2, 1, 1.0),
    ShownPassage("01", "text 1", 1, None, None),
  ]


def test_of_equal_values_the_deeper_first_right_passage_is_worse_then_the_first_query(tmp_path):
  """Of a metric that is 0 for all: found 3rd, 2nd, not at all, 2nd."""
  folder = write_beir(tmp_path / "toy", [(query, "1", 1) for query in "abcd"])
  results = {"a": ["01", "q", "1"], "b": ["01", "1"], "c": ["01"], "d": ["q", "1"]}
  found = [worst(folder, count=count, results=results, metric="p@1") for count in (1, 2, 4)]
  assert [[query.query_id for query in queries] for queries in found] == [
    ["c"],
    ["c", "a"],
    ["c", "a", "b", "d"],
  ]


def test_a_passage_that_the_corpus_lacks_has_no_text_and_long_texts_are_cut(tmp_path):
  texts = ["x" * LONGEST, "y" * (LONGEST + 1), *("z" for _ in IDS[2:])]
  # Below 1% of the judgements dangle.
  qrels = [("a", "1", 1), ("a", "01", 1), ("a", "gone", 3), *((f"q{i}", "1", 1) for i in range(200))]
  folder = write_beir(tmp_path / "toy", qrels, texts=texts)
  (query,) = worst(folder, count=1, results={f"q{i}": ["1"] for i in range(200)})
  assert query.query_id == "a"
  assert query.relevant == 3
  assert query.right[0] == ShownPassage(None, None, 3, None, None)
  assert query.right[1].text == "x" * LONGEST
  assert query.right[2].text == "y" * (LONGEST - 1) + "\u2026"
  assert query.retrieved == []


def test_evaluation_writes_the_worst_queries_by_its_first_metric(tmp_path):
  folder = write_beir(tmp_path / "toy", QRELS)
  evaluator(folder).run(Fixed(RESULTS), model_dir=tmp_path / "model")
  written = tmp_path / "model" / "eval" / "toy" / "fixed_step_7"
  found = read_worst(written / "worst.jsonl")
  assert [(query.query_id, query.metric) for query in found] == [(query, "mrr") for query in "cabd"]
  assert {path.name for path in written.iterdir()} == {
    "metrics.json",
    "run.trec",
    "per_query.tsv",
    "worst.jsonl",
  }


def test_the_file_gives_back_what_was_written(tmp_path):
  passage = ShownPassage("p\n1", "<script>\u2028\ud800", 1, None, None)
  queries = [WorstQuery("q\t", "text", "mrr", 0.25, 1, [], [passage])]
  write_worst(tmp_path / "worst.jsonl", queries)
  assert read_worst(tmp_path / "worst.jsonl") == queries
  write_worst(tmp_path / "worst.jsonl", [])
  assert read_worst(tmp_path / "worst.jsonl") == []


@pytest.mark.parametrize(
  "damage, message",
  [
    (lambda line: line[:-1], "worst.jsonl:1: the last line has no end"),
    (lambda line: line + b"{}\n", "worst.jsonl:2: not a query as the evaluation writes it .KeyError"),
    (lambda line: line.replace(b'"value": 0.5', b'"value": "x"'), "worst.jsonl:1: not a query"),
    (lambda line: line.replace(b'"text"', b'"txt"'), "worst.jsonl:1: not a query"),
    (lambda line: line[:20] + b"\n", "worst.jsonl:1: not a query"),
  ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, damage, message):
  path = tmp_path / "worst.jsonl"
  write_worst(path, [WorstQuery("q", "text", "mrr", 0.5, 1, [], [])])
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(UserError, match=message):
    read_worst(path)
