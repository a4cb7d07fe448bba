"""Users' tables of pairs, triples and passages: headers, names of columns, ids, negatives, mistakes."""

import json
import pathlib

import pytest

from retrieval_jax.data import features
from retrieval_jax.data.tables import is_json, read_jsonl_pairs, read_passages, read_tsv_pairs
from retrieval_jax.data.text_table import text_id
from retrieval_jax.errors import UserError

HARD = "a\u2028b\x85c\rd\x0be\x1cf"


def write(path: pathlib.Path, *lines: str) -> pathlib.Path:
  path.write_bytes("".join(f"{line}\n" for line in lines).encode())
  return path


def write_json(path: pathlib.Path, *records: dict) -> pathlib.Path:
  return write(path, *(json.dumps(record, ensure_ascii=False) for record in records))


def test_tsv_without_a_header_gives_equal_texts_one_id(tmp_path: pathlib.Path):
  pairs = list(read_tsv_pairs(write(tmp_path / "x.tsv", f"q\t{HARD}", "q\tother")))
  assert pairs == [
    features.pair(text_id("q"), "q", text_id(HARD), HARD),
    features.pair(text_id("q"), "q", text_id("other"), "other"),
  ]


def test_tsv_with_a_header_in_any_order(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.tsv", "passage_id\tpassage\trelevance\tquery\tquery_id", "01\tp\t-1\tq\t 7 ")
  assert list(read_tsv_pairs(path)) == [features.pair(" 7 ", "q", "01", "p", -1)]


def test_tsv_keeps_quotes_and_carriage_returns(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.tsv", 'a "b\t"c" d"', 'e\t"f\r')
  assert [(p["inputs"], p["targets"]) for p in read_tsv_pairs(path)] == [('a "b', '"c" d"'), ("e", '"f\r')]


def test_tsv_with_titles(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.tsv", "query\tpassage\ttitle", "q\tp\t t ", "q\tp\t", "q\tp\tu")
  pairs = list(read_tsv_pairs(path))
  assert [pair.get("title") for pair in pairs] == ["t", None, "u"]
  assert len({pair["passage_id"] for pair in pairs}) == 3
  assert pairs[1] == features.pair(text_id("q"), "q", text_id("p"), "p")
  assert len(list(read_tsv_pairs(write(tmp_path / "y.tsv", "title\ta query may be this word")))) == 1


def test_tsv_columns_with_names_of_their_own(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.tsv", "url\tquestion\tbad\tanswer\tworse", "u\tq\tn\tp\tm", "u\tq\t\tp\tm")
  columns = {"query": "question", "passage": "answer", "negative": ["bad", "worse"]}
  first = features.pair(
    text_id("q"), "q", text_id("p"), "p", negatives=["n", "m"], negative_ids=[text_id("n"), text_id("m")]
  )
  second = features.pair(text_id("q"), "q", text_id("p"), "p", negatives=["m"], negative_ids=[text_id("m")])
  assert list(read_tsv_pairs(path, columns)) == [first, second]


def test_first_lines_that_are_data(tmp_path: pathlib.Path):
  assert len(list(read_tsv_pairs(write(tmp_path / "x.tsv", "question\tJAX")))) == 1
  assert len(list(read_tsv_pairs(write(tmp_path / "x.tsv", "query\tpassage", "question\tanswer")))) == 1
  assert (
    len(list(read_tsv_pairs(write(tmp_path / "x.tsv", "question\tanswer"), {"query": 1, "passage": 2}))) == 1
  )
  assert len(list(read_passages(write(tmp_path / "x.tsv", "id\ttext", "docid\tcontents")))) == 1
  assert len(list(read_passages(write(tmp_path / "x.tsv", "7\tcontents")))) == 1


def test_tsv_columns_by_number_where_there_is_no_header(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.tsv", "query\tpassage\tnegative")
  columns = {"query": 1, "passage": 2, "negative": 3}
  pair = features.pair(
    text_id("query"),
    "query",
    text_id("passage"),
    "passage",
    negatives=["negative"],
    negative_ids=[text_id("negative")],
  )
  assert list(read_tsv_pairs(path, columns)) == [pair]


def test_tsv_negatives_by_their_usual_names(tmp_path: pathlib.Path):
  head = "query\tpassage\tnegative_10\tnegative_2\tnegative_id_2\tnegative_id_10"
  path = write(tmp_path / "x.tsv", head, "q\tp\tten\ttwo\t2\t10")
  assert list(read_tsv_pairs(path)) == [
    features.pair(text_id("q"), "q", text_id("p"), "p", negatives=["two", "ten"], negative_ids=["2", "10"])
  ]


@pytest.mark.parametrize(
  "lines, message",
  [
    (["q\tp", "only one"], r"x\.tsv:2: 1 columns, expected 2 \(query, passage\)"),
    (["q\tp\textra"], r"x\.tsv:1: 3 columns, expected 2"),
    (["query\tpassage\trelevance", "q\tp\tyes"], r"x\.tsv:2: relevance 'yes'; expected an integer"),
    (["query\tpassage\trelevance", "q\tp\t2147483648"], r"x\.tsv:2: relevance '2147483648'; .* 2\*\*31"),
    (["Query\tPassage"], r"x\.tsv:1: .*'Query'.* Column names: query, passage, query_id, passage_id, relev"),
    (["query \tpassage"], r"x\.tsv:1: .*'query '.* Column names: query, passage"),
    (["query\tanswer"], r"x\.tsv:1: .*'answer'.* Column names: query, passage"),
    (["query\tpassage\tscore"], r"x\.tsv:1: .*'score' is not known.* must name each of query, passage, "),
    (["query\tpassage\tpasage_id"], r"x\.tsv:1: .*'pasage_id' is not known; did you mean 'passage_id'"),
    (
      ["question\tAnswer "],
      r"x\.tsv:1: the first line \['question', 'Answer '\].*COLUMNS = {.*put the line query<TAB>",
    ),
    (["docid\tquestion\tscore"], r"x\.tsv:1: the first line .* looks like a header whose names are not ours"),
    (["query\tpassage\tpassage"], r"x\.tsv:1: the header .* at most once"),
    (["query\tpassage\tnegative_id"], r"x\.tsv:1: negative_id without negative needs .* CORPUS_PATH"),
    (["query\tpassage\tnegative\tnegative_id", "q\tp\tn\t"], r"x\.tsv:2: 1 negatives and 0 ids"),
    (
      ["query\tpassage\tnegative_1\tnegative_2\tnegative_id"],
      r"x\.tsv:1: 2 columns of negatives .* and 1 of their ids",
    ),
  ],
)
def test_tsv_mistakes_name_file_and_line(tmp_path: pathlib.Path, lines: list[str], message: str):
  with pytest.raises(UserError, match=message):
    list(read_tsv_pairs(write(tmp_path / "x.tsv", *lines)))


@pytest.mark.parametrize(
  "columns, message",
  [
    ({"qery": "q"}, r"COLUMNS names 'qery'; did you mean 'query' or 'query_id'\? It maps"),
    ({"query": ["a", "b"]}, r"COLUMNS maps 'query' to \['a', 'b'\]; expected the name of one column"),
    ({"query": "q", "passage": 2}, r"expected the names of a header's columns or, .* their numbers from 1"),
    ({"query": 0, "passage": 1}, r"their numbers from 1"),
    ({"query": "q", "passage": "text"}, r"x\.tsv:1: COLUMNS names the column 'text', but .*\['q', 'p'\]"),
    ({"query": 1, "passage": 3}, r"x\.tsv:1: COLUMNS names the column '3', but the columns are \['1', '2'\]"),
    ({"query": 1.5, "passage": 2}, r"COLUMNS maps 'query' to 1\.5; expected the name of one column"),
    ({"query": None, "passage": 2}, r"COLUMNS maps 'query' to None; expected the name of one column"),
    (
      {"query": 1, "passage": 2, "negative": [3, None]},
      r"COLUMNS maps 'negative' to \[3, None\]; expected the",
    ),
    ({"query": True, "passage": 2}, r"COLUMNS maps 'query' to True; expected the name of one column"),
    ({"query": 1, "passage": 1}, r"x\.tsv:1: the column '1' is read as query and as passage; expected"),
    ({"query": "q", "passage": "q"}, r"x\.tsv:1: the column 'q' is read as query and as passage; expected"),
    ({"query": 1, "passage": 2, "negative": 2}, r"the column '2' is read as passage and as negative"),
    ({"title": "q"}, r"x\.tsv:1: the columns \['q', 'p'\] lack query or passage"),
  ],
)
def test_mistakes_in_columns(tmp_path: pathlib.Path, columns: dict, message: str):
  with pytest.raises(UserError, match=message):
    list(read_tsv_pairs(write(tmp_path / "x.tsv", "q\tp"), columns))


def test_jsonl(tmp_path: pathlib.Path):
  path = write_json(
    tmp_path / "x.jsonl",
    {"query": "q", "passage": HARD},
    {"passage": "p", "query": "q", "title": None, "relevance": 0.0, "negative": ["n", "m"]},
    {"query": "q", "passage": "p", "title": " t ", "negative": "n"},
    {"query": "q", "passage": "", "negative": []},
  )
  n, m = text_id("n"), text_id("m")
  assert list(read_jsonl_pairs(path)) == [
    features.pair(text_id("q"), "q", text_id(HARD), HARD),
    features.pair(text_id("q"), "q", text_id("p"), "p", 0, negatives=["n", "m"], negative_ids=[n, m]),
    features.pair(text_id("q"), "q", text_id("t\tp"), "p", title="t", negatives=["n"], negative_ids=[n]),
    features.pair(text_id("q"), "q", text_id(""), ""),
  ]


def test_jsonl_ids_and_keys_of_its_own(tmp_path: pathlib.Path):
  path = write_json(
    tmp_path / "x.jsonl",
    {"qid": 7, "question": "q", "pid": "07", "answer": "p", "hard": ["n"], "hard_ids": [1], "url": "u"},
  )
  columns = {"query_id": "qid", "query": "question", "passage_id": "pid", "passage": "answer"}
  columns |= {"negative": "hard", "negative_id": "hard_ids"}
  assert list(read_jsonl_pairs(path, columns)) == [
    features.pair("7", "q", "07", "p", negatives=["n"], negative_ids=["1"])
  ]


@pytest.mark.parametrize(
  "record, message",
  [
    ({"query": "q"}, r"x\.jsonl:2: the columns \['query'\] lack query or passage"),
    ({"query": "q", "passage": None}, r"x\.jsonl:2: passage is None; expected text"),
    ({"query": 3, "passage": "p"}, r"x\.jsonl:2: query is 3; expected text"),
    ({"query": "q", "passage": "p", "Title": "t"}, r"x\.jsonl:2: the column 'Title' is not known; did you"),
    ({"query": "q", "passage": "p", "title": 3}, r"x\.jsonl:2: title is 3; expected text"),
    ({"query": "q", "passage": "p", "relevance": True}, r"x\.jsonl:2: relevance 'True'; expected an integer"),
    ({"query": "q", "passage": "p", "negative": [["n"]]}, r"x\.jsonl:2: negative is \[\['n'\]\]; expected"),
    ({"query": "q", "passage": "p", "query_id": "1"}, r"x\.jsonl:2: its keys are .* differ in query_id or"),
    (
      {"query": "q", "passage": "p", "negative": "n", "negative_id": []},
      r"x\.jsonl:2: 1 negatives and 0 ids",
    ),
  ],
)
def test_jsonl_mistakes_name_file_and_line(tmp_path: pathlib.Path, record: dict, message: str):
  path = write_json(tmp_path / "x.jsonl", {"query": "q", "passage": "p"}, record)
  with pytest.raises(UserError, match=message):
    list(read_jsonl_pairs(path))


def test_jsonl_column_that_no_object_has(tmp_path: pathlib.Path):
  path = write_json(tmp_path / "x.jsonl", {"query": "q", "passage": "p", "headline": "t"})
  with pytest.raises(UserError, match=r"COLUMNS names 'titel', but no object has it; their keys: headline"):
    list(read_jsonl_pairs(path, {"title": "titel"}))


def test_ids_alone_do_where_the_passages_have_a_file(tmp_path: pathlib.Path):
  head = "query\tpassage_id\tnegative_id_1\tnegative_id_2"
  path = write(tmp_path / "x.tsv", head, "q\t7\t8\t9", "q\t7\t\t9")
  assert list(read_tsv_pairs(path, with_corpus=True)) == [
    features.pair(text_id("q"), "q", "7", "", negative_ids=["8", "9"]),
    features.pair(text_id("q"), "q", "7", "", negative_ids=["9"]),
  ]
  with pytest.raises(UserError, match=r"x\.tsv:1: .*looks like a header but is none"):
    list(read_tsv_pairs(path))


def test_passages(tmp_path: pathlib.Path):
  expected = [features.passage("01", HARD, title="t"), features.passage("1", "")]
  head = ["id\ttext\ttitle", "title\tpassage_id\tpassage"]
  assert list(read_passages(write(tmp_path / "x.tsv", f"01\t{HARD}\tt", "1\t\t"))) == expected
  assert list(read_passages(write(tmp_path / "x.tsv", head[0], f"01\t{HARD}\tt", "1\t\t "))) == expected
  assert list(read_passages(write(tmp_path / "x.tsv", head[1], f"t\t01\t{HARD}", "\t1\t"))) == expected
  path = write_json(
    tmp_path / "x.jsonl",
    {"_id": "01", "text": HARD, "title": "t", "metadata": {}},
    {"id": 1, "passage": "", "title": None},
  )
  assert list(read_passages(path)) == expected
  assert list(read_passages(write(tmp_path / "x.tsv", "a", "b"))) == [
    features.passage(text_id("a"), "a"),
    features.passage(text_id("b"), "b"),
  ]
  assert [is_json(name) for name in ("a.jsonl.zst", "b.json", "c.tsv", "jsonl.tsv.gz")] == [1, 1, 0, 0]


@pytest.mark.parametrize(
  "name, lines, message",
  [
    ("x.tsv", ["1\ta", "2\tb\tc"], r"x\.tsv:2: 3 columns, expected 2 \(id, text\)"),
    (
      "x.tsv",
      ["docid\tcontents"],
      r"x\.tsv:1: the first line .*looks like a header whose .*put the line id<TAB>text",
    ),
    ("x.tsv", ["Text"], r"x\.tsv:1: the first line \['Text'\] looks like .*put the line text above it"),
    (
      "x.tsv",
      ["pid\ttext\ttitle"],
      r"x\.tsv:1: the first line .*put the line id<TAB>text<TAB>title above it",
    ),
    ("x.tsv", ["1\ta\tb\tc"], r"x\.tsv:1: 4 columns, expected 1 to 3"),
    ("x.tsv", ["1\ta", "1\tb"], r"x\.tsv:2: the id '1' comes with another text here than at .*x\.tsv:1"),
    (
      "x.jsonl",
      ['{"id": "1", "body": "a"}'],
      r"x\.jsonl:1: its keys are id, body; expected one of passage, text",
    ),
    ("x.jsonl", ['{"id": null, "text": "a"}'], r"x\.jsonl:1: id is null"),
    ("x.jsonl", ['{"id": [1], "text": "a"}'], r"x\.jsonl:1: expected text as text and title"),
  ],
)
def test_passages_mistakes_name_file_and_line(
  tmp_path: pathlib.Path, name: str, lines: list[str], message: str
):
  with pytest.raises(UserError, match=message):
    list(read_passages(write(tmp_path / name, *lines)))
