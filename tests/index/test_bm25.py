import gzip
import json
import math
import sys

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.index.bm25 import BM25

DISCOUNTS = 1 / np.log2(np.arange(2, 12))
TEXTS = ["red red apple", "green apple tart", "blue whale", "red whale song whale"]


def _score(query, texts, k1, b):
  """Returns the BM25 scores, written out for texts that need neither stop words nor stemming."""
  documents = [text.split() for text in texts]
  mean = np.mean([len(d) for d in documents])
  scores = np.zeros(len(texts))
  for term in query.split():
    n = sum(term in d for d in documents)
    idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
    for i, d in enumerate(documents):
      f = d.count(term)
      scores[i] += idf * f / (f + k1 * (1 - b + b * len(d) / mean)) if f else 0
  return scores


@pytest.mark.parametrize("k1, b", [(1.2, 0.75), (0.9, 0.4), (2.0, 0.0)])
@pytest.mark.parametrize("query", ["red whale", "whale", "red red tart", "song unknown"])
def test_scores_are_the_written_formula(query, k1, b):
  found = BM25(TEXTS, k1=k1, b=b).search([query], k=4)
  expected = _score(query, TEXTS, k1, b)
  order = np.argsort(-expected, kind="stable")[: np.sum(expected > 0)]
  np.testing.assert_array_equal(found.rows[0][: len(order)], order)
  np.testing.assert_allclose(found.scores[0][: len(order)], expected[order], rtol=1e-5)
  assert (found.rows[0][len(order) :] == -1).all()
  assert (found.scores[0][len(order) :] == -np.inf).all()


def test_stems_case_and_stop_words():
  index = BM25(["Sorting the arrays", "the and of", "A sorted ARRAY of numbers"])
  np.testing.assert_array_equal(index.search(["sort array", "The"], k=3).rows, [[0, 2, -1], [-1, -1, -1]])


def test_equal_scores_come_in_row_order_also_at_the_cut():
  index = BM25(["other words"] + ["same words"] * 9)
  np.testing.assert_array_equal(index.search(["same"], k=4).rows, [[1, 2, 3, 4]])
  np.testing.assert_array_equal(index.search(["same"], k=12).rows, [[*range(1, 10), -1, -1, -1]])


def test_better_results_come_before_ties():
  index = BM25(["cat dog", "cat dog", "cat", "cat dog"])
  np.testing.assert_array_equal(index.search(["cat"], k=2).rows, [[2, 0]])


def test_one_text_one_query_and_no_query():
  index = BM25(["lonely text"])
  np.testing.assert_array_equal(index.search(["text"], k=3).rows, [[0, -1, -1]])
  assert index.search([], k=3).rows.shape == (0, 3)
  assert len(index) == 1


@pytest.mark.parametrize("texts", [[""], ["", "the"], ["", "word"]])
def test_empty_texts_are_indexed_as_nothing(texts):
  found = BM25(texts).search(["word", "", "the"], k=1)
  np.testing.assert_array_equal(found.rows, [[1 if "word" in texts else -1], [-1], [-1]])


def test_nothing_is_printed(capfd):
  BM25(TEXTS).search(["red"] * 5, k=2)
  assert capfd.readouterr() == ("", "")


def test_many_texts_equal_a_full_sort():
  """Enough of them for the bound that groups of scores give; few words, so that many scores tie."""
  rng = np.random.default_rng(0)
  words = [f"{a}{b}" for a in ("ba", "ce", "di", "fo") for b in ("nak", "lum", "rop", "tig")]
  texts = [" ".join(rng.choice(words, size=rng.integers(1, 6))) for _ in range(3000)]
  index = BM25(texts)
  queries = [" ".join(rng.choice(words, size=3)) for _ in range(20)]
  every = index.search(queries, k=3000)
  for k in (1, 10, 46, 47, 100):
    found = index.search(queries, k=k)
    np.testing.assert_array_equal(found.rows, every.rows[:, :k])
    np.testing.assert_array_equal(found.scores, every.scores[:, :k])
  for rows, scores in zip(every.rows, every.scores, strict=True):
    rows, scores = rows[rows >= 0], scores[rows >= 0]
    np.testing.assert_array_equal(np.lexsort((rows, -scores)), np.arange(len(rows)))
    assert 46 < len(rows) == len(set(rows.tolist()))


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["bm25s", "Stemmer"])
def test_a_missing_package(monkeypatch, package):
  monkeypatch.setitem(sys.modules, package, None)  # what import sees for a package that is not there
  with pytest.raises(UserError, match=r"needs the packages bm25s and PyStemmer.*retrieval-jax\[bm25\]"):
    BM25(TEXTS)


def test_no_texts():
  with pytest.raises(UserError, match="no texts to index"):
    BM25([])


@pytest.mark.parametrize("k1, b", [(-1, 0.5), (1.2, 1.1), (float("nan"), 0.5)])
def test_parameters_out_of_range(k1, b):
  with pytest.raises(UserError, match="expected k1 >= 0 and b within"):
    BM25(TEXTS, k1=k1, b=b)


def test_k_below_one():
  with pytest.raises(UserError, match="k is 0"):
    BM25(TEXTS).search(["red"], k=0)


# --- real data ----------------------------------------------------------------------------------------------------


def test_scifact_is_ranked_as_well_as_published(data_dir):
  """nDCG@10 of BM25 over SciFact's title and text; BEIR (Thakur et al., 2021, table 2) has 0.665 with two fields."""

  def lines(name):
    with gzip.open(data_dir / "scifact" / name, "rb") as file:
      return [json.loads(line) for line in file]

  corpus, queries = lines("corpus.jsonl.gz"), {row["_id"]: row["text"] for row in lines("queries.jsonl.gz")}
  judged: dict[str, set[str]] = {}
  for line in (data_dir / "scifact" / "qrels" / "test.tsv").read_bytes().split(b"\n")[1:-1]:
    query, passage, grade = line.decode().rstrip("\r").split("\t")
    assert grade == "1"
    judged.setdefault(query, set()).add(passage)
  index = BM25([f"{row['title']} {row['text']}" for row in corpus])
  found = index.search([queries[query] for query in judged], k=10)
  values = []
  for rows, relevant in zip(found.rows, judged.values(), strict=True):
    gains = [corpus[row]["_id"] in relevant if row >= 0 else False for row in rows]
    ideal = [rank < len(relevant) for rank in range(10)]
    values.append(np.dot(gains, DISCOUNTS) / np.dot(ideal, DISCOUNTS))
  assert len(values) == 300
  assert np.mean(values) == pytest.approx(0.679, abs=0.003)
