"""Generated tables and corpora: each is read right or refused with file and line; never a shifted row."""

import pathlib

import pytest
from fuzz_files import (
  CELL,
  GRADES,
  HUGE,
  NO_GRADES,
  TEXT,
  Fault,
  check,
  fault_in,
  fresh,
  fuzz,
  json_row,
  spoil,
  tsv,
  unique_ids,
  write_file,
)
from hypothesis import given
from hypothesis import strategies as st

from retrieval_jax.data import features
from retrieval_jax.data.beir import read_beir_corpus
from retrieval_jax.data.msmarco import IdTriple, read_collection, read_id_triples
from retrieval_jax.data.tables import read_jsonl_pairs, read_passages, read_tsv_pairs
from retrieval_jax.data.text_table import text_id


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp("fuzz")


@fuzz(40)
@given(st.data())
def test_tsv_pairs(home: pathlib.Path, data: st.DataObject):
  names = ["query", "passage"]
  header = data.draw(st.booleans())
  if header:
    others = st.lists(st.sampled_from(["query_id", "passage_id", "relevance", "title"]), unique=True)
    names = data.draw(st.permutations([*names, *data.draw(others)]))
  rows, expected = [names] if header else [], []
  for _ in range(data.draw(st.integers(1, 6))):
    cells = {name: data.draw(CELL) for name in names} | {
      "relevance": data.draw(st.sampled_from(list(GRADES)))
    }
    if data.draw(st.integers(0, 9)) == 0:
      cells["passage"] = HUGE
    rows.append([cells[name] for name in names])
    title = cells["title"].strip() if "title" in names else ""
    passage_id = text_id(f"{title}\t{cells['passage']}" if title else cells["passage"])
    pair = features.pair(
      cells["query_id"] if "query_id" in names else text_id(cells["query"]),
      cells["query"],
      cells["passage_id"] if "passage_id" in names else passage_id,
      cells["passage"],
      GRADES[cells["relevance"]] if "relevance" in names else 1,
      title=title,
    )
    expected.append(pair)
  fault = fault_in(data, len(rows), first=int(header))
  if fault:
    if "relevance" in names and data.draw(st.booleans()):
      rows[fault.row][names.index("relevance")] = data.draw(st.sampled_from(NO_GRADES))
    else:
      rows[fault.row] = spoil(data, rows[fault.row])
  file = write_file(data, fresh(home), "x.tsv", map(tsv, rows), fault)
  check(lambda: read_tsv_pairs(file.path), file, expected, headers=int(header))


@fuzz(30)
@given(st.data())
def test_jsonl_pairs(home: pathlib.Path, data: st.DataObject):
  names = ["query", "passage", *data.draw(st.lists(st.sampled_from(["query_id", "passage_id"]), unique=True))]
  rows, expected = [], []
  for _ in range(data.draw(st.integers(1, 6))):
    record = {name: data.draw(TEXT) for name in names}
    negatives = data.draw(st.lists(TEXT, max_size=2))
    grade = data.draw(st.integers(-1, 2))
    rows.append(json_row(data, record | {"negative": negatives, "relevance": grade, "title": None}))
    kept = [negative for negative in negatives if negative]
    pair = features.pair(
      record.get("query_id", text_id(record["query"])),
      record["query"],
      record.get("passage_id", text_id(record["passage"])),
      record["passage"],
      grade,
      negatives=kept,
      negative_ids=[text_id(negative) for negative in kept],
    )
    expected.append(pair)
  fault = fault_in(data, len(rows))
  if fault:
    bad = [rows[fault.row][:-1], b"[]", b'{"query": "q"}', b'{"query": "q", "passage": 1}', b"{} {}", b"q\tp"]
    rows[fault.row] = data.draw(st.sampled_from(bad))
  file = write_file(data, fresh(home), "x.jsonl", rows, fault)
  check(lambda: read_jsonl_pairs(file.path), file, expected)


def passages(
  data: st.DataObject, text: st.SearchStrategy[str]
) -> tuple[list[features.Example], Fault | None]:
  """Returns passages with ids that come once, come again alike or, as the fault, with another text."""
  ids = data.draw(unique_ids(data.draw(st.integers(1, 6))))
  found = [features.passage(id, data.draw(text)) for id in ids]
  again = data.draw(st.integers(0, 3))
  if again == 0:
    found.append(data.draw(st.sampled_from(found)))
  if again != 1:
    return found, None
  twice = dict(data.draw(st.sampled_from(found)))
  return [*found, features.passage(twice["passage_id"], f"{twice['targets']}other")], Fault(
    len(found), late=True
  )


@fuzz(30)
@given(st.data())
def test_beir_corpus(home: pathlib.Path, data: st.DataObject):
  expected, fault = passages(data, TEXT.map(str.strip))
  rows = []
  for passage in expected:
    title = data.draw(
      st.sampled_from([{}, {"title": None}, {"title": ""}, {"title": " \u2028"}, {"metadata": {}}])
    )
    text = data.draw(st.sampled_from(["{}", " {}", "{}\n"])).format(passage["targets"])
    rows.append(json_row(data, {"_id": passage["passage_id"], "text": text, **title}))
  if fault is None and (fault := fault_in(data, len(rows))):
    bad = [
      rows[fault.row][:-1],
      b'{"text": "x"}',
      b'{"_id": 1, "text": "x"}',
      b'{"_id": "1", "text": null}',
      b"1",
    ]
    rows[fault.row] = data.draw(st.sampled_from(bad))
  file = write_file(data, fresh(home), "corpus.jsonl", rows, fault)
  check(lambda: read_beir_corpus(file.path.parent), file, expected)


@fuzz(30)
@given(st.data())
def test_collections(home: pathlib.Path, data: st.DataObject):
  expected, fault = passages(data, CELL)
  rows = [[str(passage["passage_id"]), str(passage["targets"])] for passage in expected]
  if fault is None and (fault := fault_in(data, len(rows), first=1)):
    rows[fault.row] = spoil(data, rows[fault.row])
  file = write_file(data, fresh(home), "collection.tsv", map(tsv, rows), fault)
  read = data.draw(st.sampled_from([read_collection, read_passages]))
  check(lambda: read(file.path), file, expected)


@fuzz(15)
@given(st.data())
def test_id_triples(home: pathlib.Path, data: st.DataObject):
  rows = data.draw(st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1, max_size=6))
  expected = [IdTriple(*row) for row in rows]
  fault = fault_in(data, len(rows))
  if fault:
    rows[fault.row] = spoil(data, rows[fault.row])
  file = write_file(data, fresh(home), "x.tsv", map(tsv, rows), fault)
  check(lambda: read_id_triples(file.path), file, expected)
