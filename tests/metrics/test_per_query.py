import math
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.per_query import read_per_query, write_per_query

HARD_IDS = [
  "q\t1",
  "a\nb",
  '"quoted"',
  'in "the" middle',
  "\r",
  "",
  " ",
  "é\u2028",
  "\ufeffq",
  "\ud800",
  "01",
  "nan",
  "\\",
]


def test_the_bytes(tmp_path):
  path = tmp_path / "deep" / "per_query.tsv"
  write_per_query(path, ["q1", "2"], {"ndcg@10": np.array([1 / 3, math.nan]), "p@1": np.array([1, 0])})
  assert path.read_bytes() == b"query_id\tndcg@10\tp@1\nq1\t0.3333333333333333\t1.0\n2\tnan\t0.0\n"


def test_round_trip_of_every_kind_of_id(tmp_path):
  values = np.random.default_rng(0).random(len(HARD_IDS))
  write_per_query(tmp_path / "x.tsv", HARD_IDS, {"mrr": values, "a\tb": -values})
  found = read_per_query(tmp_path / "x.tsv")
  assert found.query_ids == HARD_IDS
  assert list(found.values) == ["mrr", "a\tb"]
  np.testing.assert_array_equal(found.values["mrr"], values)
  np.testing.assert_array_equal(found.values["a\tb"], -values)
  assert (tmp_path / "x.tsv").read_bytes().count(b"\n") == 1 + len(HARD_IDS)


def test_plain_ids_stand_as_they_are(tmp_path):
  write_per_query(tmp_path / "x.tsv", ["PLAIN-2", 'in "the" middle', "日本 語"], {})
  assert (tmp_path / "x.tsv").read_text(encoding="utf-8") == 'query_id\nPLAIN-2\nin "the" middle\n日本 語\n'


@given(st.lists(st.text(st.characters(), max_size=4), unique=True, max_size=5), st.floats())
def test_any_text_and_any_number_comes_back(tmp_path_factory, ids, value):
  path = tmp_path_factory.getbasetemp() / "any.tsv"
  write_per_query(path, ids, {"m": np.full(len(ids), value)})
  found = read_per_query(path)
  assert found.query_ids == ids
  np.testing.assert_array_equal(found.values["m"], np.full(len(ids), value))


def test_no_queries(tmp_path):
  write_per_query(tmp_path / "x.tsv", [], {"mrr": np.zeros(0)})
  found = read_per_query(tmp_path / "x.tsv")
  assert found.query_ids == []
  assert found.values["mrr"].shape == (0,)


def test_mistakes_in_writing_leave_the_old_file(tmp_path):
  path = tmp_path / "x.tsv"
  write_per_query(path, ["q"], {"mrr": np.ones(1)})
  before = path.read_bytes()
  with pytest.raises(UserError, match=r"mrr has the shape \(2,\); expected 1 queries"):
    write_per_query(path, ["q"], {"mrr": np.ones(2)})
  with pytest.raises(UserError, match="the query id 'q' comes twice"):
    write_per_query(path, ["q", "r", "q"], {"mrr": np.ones(3)})
  assert path.read_bytes() == before
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
  "text, message",
  [
    (b"", r":1: the last line has no end"),
    (b"query_id\tmrr\nq\t0.5\nr\t0.", r":3: the last line has no end, so the file is cut off"),
    (b"query\tmrr\n", r":1: the columns are \['query', 'mrr'\]; expected 'query_id' first"),
    (b"query_id\tmrr\tmrr\n", r":1: .* then different metrics"),
    (b"query_id\tmrr\nq\t0.5\nr\n", r":3: 1 columns; the header has 2"),
    (b"query_id\tmrr\nq\t0.5\t1\n", r":2: 3 columns; the header has 2"),
    (b"query_id\tmrr\nq\t0.5\n\n", r":3: 1 columns; the header has 2"),
    (b"query_id\tmrr\nq\thalf\n", r":2: 'half' is not a number"),
    (b"query_id\tmrr\nq\t0.5\nq\t0.5\n", r":3: the query id 'q' comes twice"),
    (b"query_id\tmrr\n\"q\t0.5\n", r":2: not a table of values"),
    (b"query_id\tmrr\n\xff\t0.5\n", r":2: not a table of values.*utf-8"),
    (b"query_id\tmrr\r\nq\t0.5\r\n", r":1: .*line ends"),
  ],
)  # fmt: skip
def test_mistakes_in_reading(tmp_path: pathlib.Path, text, message):
  path = tmp_path / "x.tsv"
  path.write_bytes(text)
  with pytest.raises(UserError, match=r"x\.tsv" + message):
    read_per_query(path)
