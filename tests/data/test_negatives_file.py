"""A file of hard negatives: both layouts, what is left out, how it joins the task's own, and every mistake."""

import gzip
import logging
import pathlib

import numpy as np
import pytest
from toy_source import ListSource

from retrieval_jax.data import features, negatives_file
from retrieval_jax.data.dataset import RetrievalData, load, make_batch
from retrieval_jax.data.known_positives import KnownPositives
from retrieval_jax.data.negative_lines import first_line_of
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError

CORPUS = [
  features.passage(id, text)
  for id, text in zip(["p", "q", "r", "s", "p again"], ["red", "green", "blue", "a b", "RED"], strict=True)
]
TRAIN = [
  features.pair("1", "a", "p", ""),
  features.pair("2", "b", "q", ""),
  features.pair("1 again", "A", "r", ""),
  features.pair("2", "b", "s", "", relevance=0),
]
SOURCE = ListSource({"train": TRAIN, "corpus": CORPUS})
HEADER = "query_id\tpassage_id"


def write(path: pathlib.Path, *lines: str) -> str:
  path.write_bytes("".join(f"{line}\n" for line in lines).encode())
  return str(path)


@pytest.fixture
def negatives_of(inputs: TextInputs, tmp_path: pathlib.Path):
  """negatives_of(*lines): the passage ids of each query's negatives, from a file with these lines."""

  def negatives_of(*lines: str, source: ListSource = SOURCE) -> list[list[str]]:
    path = write(tmp_path / "negatives.tsv", *lines)
    return ids(load(source, inputs, hard_negatives=path, cache=tmp_path))

  return negatives_of


def ids(data: RetrievalData) -> list[list[str]]:
  assert data.negatives is not None
  return [data.passages.ids.take(data.negatives.row(row)) for row in range(data.queries.num_rows)]


def test_a_header_names_the_columns_in_any_order(negatives_of):
  lines = ["score\tpassage_id\trank\tquery_id", "0.5\ts\t1\t1", "x\tq\t\t1", "1\ts\t2\t2"]
  assert negatives_of(*lines) == [["q", "s"], ["s"], []]


def test_three_ids_without_a_header_are_query_positive_and_negative(negatives_of):
  assert negatives_of("1\tp\tq", "2\tq\tr", "1\tp\ts") == [["q", "s"], ["r"], []]


def test_a_pair_that_comes_twice_is_one(negatives_of):
  assert negatives_of(HEADER, "1\tq", "2\tr", "1\tq") == [["q"], ["r"], []]


def test_passages_that_answer_the_query_are_left_out_equal_texts_included(
  negatives_of, caplog: pytest.LogCaptureFixture
):
  # p is the positive of 1, "p again" has its text, and r is the positive of "1 again", a query of the same text.
  lines = [HEADER, "1\tp", "1\tp again", "1\tr", "1\tq", "2\ts", "1 again\tp"]
  with caplog.at_level(logging.WARNING):
    assert negatives_of(*lines) == [["q"], ["s"], []]  # s was judged, and is no positive
  assert "negatives.tsv: 4 of 6 pairs are left out, for the passage answers the query" in caplog.text


def test_ids_that_the_data_lack_are_counted_at_every_load(negatives_of, caplog: pytest.LogCaptureFixture):
  for _ in range(2):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
      assert negatives_of("1\tp\tq", "01\tp\tq", "1\tp\tzz", "x\ty\tz") == [["q"], [], []]
    message = (
      "3 of 4 pairs are not of these data (2 by their query, 2 by their passage; the first is '01', 'q')"
    )
    assert f"negatives.tsv: {message}: they are left out." in caplog.text


def test_ids_are_opaque(inputs: TextInputs, tmp_path: pathlib.Path):
  odd = ["1", "01", " 1", "1e0", "\u2028", "query_id", "x\r"]
  corpus = [features.passage(id, f"a {'b ' * i}") for i, id in enumerate(odd)]
  source = ListSource({"train": [features.pair("q", "c", "1", "")], "corpus": corpus})
  path = write(tmp_path / "negatives.tsv", HEADER, *(f"q\t{id}" for id in reversed(odd)))
  assert ids(load(source, inputs, hard_negatives=path, cache=tmp_path)) == [odd[1:]]


@pytest.mark.parametrize("name", ["negatives.tsv.gz", "negatives.tsv.zst"])
def test_compressed_files(inputs: TextInputs, tmp_path: pathlib.Path, name: str):
  text = b"query_id\tpassage_id\r\n1\tq\r\n"
  if name.endswith(".zst"):
    zstandard = pytest.importorskip("zstandard")
    data = zstandard.ZstdCompressor().compress(text)
  else:
    data = gzip.compress(text)
  (tmp_path / name).write_bytes(data)
  assert ids(load(SOURCE, inputs, hard_negatives=str(tmp_path / name), cache=tmp_path)) == [["q"], [], []]


def test_the_file_joins_the_negatives_of_the_task(negatives_of):
  own = [features.pair("1", "a", "p", "", negative_ids=["s", "p again"]), *TRAIN[1:]]
  source = ListSource({"train": own, "corpus": CORPUS})
  assert negatives_of(HEADER, "1\tq", "1\ts", "2\tr", source=source) == [["q", "s"], ["r"], []]


def test_a_task_s_own_negatives_of_a_positive_s_text_are_left_out_without_a_file(
  inputs: TextInputs, tmp_path: pathlib.Path
):
  own = [features.pair("1", "a", "p", "", negative_ids=["s", "p again", "q"]), *TRAIN[1:]]
  data = load(ListSource({"train": own, "corpus": CORPUS}), inputs, cache=tmp_path)
  assert ids(data) == [["s", "q"], [], []]


def test_many_small_chunks_are_one_file(negatives_of, monkeypatch: pytest.MonkeyPatch):
  rng = np.random.default_rng(0)
  lines = [
    f"{q}\tp\t{p}" for q, p in zip(rng.choice(["1", "2"], 50), rng.choice(list("pqrs"), 50), strict=True)
  ]
  expected = [
    sorted({line[-1] for line in lines if line[0] == "1"} - {"p", "r"}),
    sorted({line[-1] for line in lines if line[0] == "2"} - {"q"}),
    [],
  ]
  monkeypatch.setattr(negatives_file, "CHUNK", 7)
  monkeypatch.setattr(negatives_file, "BLOCK", 5)
  assert negatives_of(*lines) == expected


def test_the_file_is_read_once_again_when_it_changes_and_in_the_fingerprint(
  inputs: TextInputs, tmp_path: pathlib.Path
):
  path = write(tmp_path / "negatives.tsv", HEADER, "1\tq")
  first = load(SOURCE, inputs, hard_negatives=path, cache=tmp_path)
  (built,) = tmp_path.glob("hard_negatives/*/passage_rows.npy")
  stamp = built.stat()
  again = load(SOURCE, inputs, hard_negatives=path, cache=tmp_path)
  assert (built.stat().st_ino, built.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
  assert again.fingerprint == first.fingerprint
  write(tmp_path / "negatives.tsv", HEADER, "1\tq", "1\ts")
  changed = load(SOURCE, inputs, hard_negatives=path, cache=tmp_path)
  assert ids(changed) == [["q", "s"], [], []]
  plain = load(SOURCE, inputs, cache=tmp_path)
  assert len({plain.fingerprint, first.fingerprint, changed.fingerprint}) == 3


def test_a_batch_draws_from_the_file(inputs: TextInputs, tmp_path: pathlib.Path):
  path = write(tmp_path / "negatives.tsv", HEADER, "1\tq", "1\ts", "2\tr")
  data = load(SOURCE, inputs, hard_negatives=path, cache=tmp_path)
  batch = make_batch(data, np.array([0, 1]), seed=0, epoch=0, hard_negatives=2)
  assert batch.passage_rows[:2].tolist() == [0, 1]
  assert sorted(batch.passage_rows[2:4].tolist()) == [1, 3]
  assert batch.passage_rows[4:].tolist() == [2, -1]


def test_known_positives_count_every_copy(inputs: TextInputs, tmp_path: pathlib.Path):
  data = load(SOURCE, inputs, cache=tmp_path)
  known = KnownPositives.of(data.relevance, data.queries, data.passages)
  assert known.count(np.array([0, 1, 2])).tolist() == [
    3,
    1,
    3,
  ]  # p, p again, r; q; those of the same query text
  assert known.has(np.array([[0, 1], [2, 2]]), np.array([[4, 4], [0, 1]])).tolist() == [
    [True, False],
    [True, False],
  ]


def test_the_first_line_about_a_query(tmp_path: pathlib.Path):
  path = write(tmp_path / "negatives.tsv", HEADER, "", "1\tq", "2\tr", "2\ts")
  assert first_line_of(path, "2") == f"{path}:4"
  assert first_line_of(path, "3") is None


@pytest.mark.parametrize(
  "lines, message",
  [
    ([], r"negatives\.tsv: no pairs in it\. Expected a header that names query_id and passage_id"),
    ([HEADER], r"negatives\.tsv: no pairs in it"),
    (["1\tq"], r"negatives\.tsv:1: 2 columns and no header; expected a header .* or lines of three ids"),
    (["1\tp\tq\t1"], r"negatives\.tsv:1: 4 columns and no header"),
    (["query_id\tpassage_id\trnk"], r"negatives\.tsv:1: unknown column 'rnk'; did you mean 'rank'\? Known"),
    (["query_id\tpid"], r"negatives\.tsv:1: unknown column 'pid'"),
    (
      ["query_id\trank"],
      r"negatives\.tsv:1: the header .* must name query_id and passage_id, each column once",
    ),
    (["query_id\tpassage_id\tquery_id"], r"negatives\.tsv:1: the header .* each column once"),
    (["query-id\tcorpus-id\tscore"], r"negatives\.tsv:1: the first line .* looks like a header but is none"),
    (["qid\tpos_id\tneg_id"], r"negatives\.tsv:1: the first line .* looks like a header but is none"),
    ([HEADER, "1\tq", "", "1\tq\t3"], r"negatives\.tsv:4: 3 columns, expected 2 as in the first line"),
    (["1\tp\tq", "1\tq"], r"negatives\.tsv:2: 2 columns, expected 3 as in the first line"),
    (["x\ty\tz"], r"1 of 1 pairs are not of these data .*'1' is not '01'.* another task or split\?"),
    (["1\tq\tp", "2\ts\tq", "z\tz\tz"], r"all of its 2 pairs that are of these data are known positives"),
  ],
)
def test_mistakes_name_the_file_and_the_line(negatives_of, lines: list[str], message: str, tmp_path):
  with pytest.raises(UserError, match=message):
    negatives_of(*lines)
  assert not [path for path in tmp_path.glob("hard_negatives/*") if not path.name.startswith(".")]


def test_a_file_that_is_none(inputs: TextInputs, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match="no such file"):
    load(SOURCE, inputs, hard_negatives=str(tmp_path / "gone.tsv"), cache=tmp_path)
  with pytest.raises(UserError, match="cannot be read"):
    load(SOURCE, inputs, hard_negatives=str(tmp_path), cache=tmp_path)
  with pytest.raises(UserError, match="HARD_NEGATIVES_PATH=5: expected the path of a TSV file"):
    load(SOURCE, inputs, hard_negatives=5, cache=tmp_path)  # pyright: ignore[reportArgumentType]
