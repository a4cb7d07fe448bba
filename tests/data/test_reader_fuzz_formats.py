"""Generated judgements, runs, contexts and graphs: each is read right or refused with file and line."""

import pathlib

import pytest
from fuzz_files import (
  CELL,
  GRADES,
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
from retrieval_jax.data.link_graph import Edge, Node, read_edges, read_nodes
from retrieval_jax.data.mrqa import read_mrqa
from retrieval_jax.data.reqa import read_reqa_corpus
from retrieval_jax.data.trec import Judgement, RunLine, read_qrels, read_run

TOKEN = st.text("ab\"'#\x85\xa0\u2028\u2029é漢🙂\x0b\x1c", min_size=1, max_size=5)  # an id without blanks


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp("fuzz")


@fuzz(30)
@given(st.data())
def test_qrels(home: pathlib.Path, data: st.DataObject):
  form = data.draw(st.sampled_from(["beir", "trec at tabs", "trec at blanks"]))
  ids = TOKEN if form == "trec at blanks" else CELL
  rows, expected = [], []
  for _ in range(data.draw(st.integers(1, 6))):
    query_id, passage_id, grade = data.draw(ids), data.draw(ids), data.draw(st.sampled_from(list(GRADES)))
    rows.append([query_id, *(["0"] if form != "beir" else []), passage_id, grade])
    expected.append(Judgement(query_id, passage_id, GRADES[grade]))
  header = form == "beir" and data.draw(st.booleans())
  if header:
    rows.insert(0, ["query-id", "corpus-id", "score"])
  fault = fault_in(data, len(rows), first=1)
  if fault and data.draw(st.booleans()):
    rows[fault.row][-1] = data.draw(st.sampled_from(NO_GRADES[1:]))
  elif fault:
    rows[fault.row] = spoil(data, rows[fault.row])
  blank = data.draw(st.sampled_from([" ", "  "])) if form == "trec at blanks" else "\t"
  file = write_file(data, fresh(home), "x.tsv", (blank.join(row).encode() for row in rows), fault)
  check(lambda: read_qrels(file.path), file, expected, headers=int(header))


@fuzz(20)
@given(st.data())
def test_runs(home: pathlib.Path, data: st.DataObject):
  pairs = data.draw(st.lists(st.tuples(TOKEN, TOKEN), min_size=1, max_size=6, unique=True))
  twice = Fault(len(pairs), late=True) if data.draw(st.integers(0, 3)) == 0 else None
  if twice:
    pairs.append(data.draw(st.sampled_from(pairs)))
  score = st.floats(allow_nan=False, allow_infinity=False)
  expected = [
    RunLine(query, passage, rank, data.draw(score), "a\u2028") for rank, (query, passage) in enumerate(pairs)
  ]
  rows = [[r.query_id, "Q0", r.passage_id, str(r.rank), repr(r.score), r.tag] for r in expected]
  fault = twice or fault_in(data, len(rows))
  if fault and not fault.late:
    place, value = data.draw(
      st.sampled_from([(3, "first"), (3, "1.5"), (4, "nan"), (4, "-inf"), (5, "t t"), (5, "")])
    )
    rows[fault.row][place] = value
  blank = data.draw(st.sampled_from([" ", "\t", " \t "]))
  file = write_file(data, fresh(home), "x.run", (blank.join(row).encode() for row in rows), fault)
  check(lambda: read_run(file.path), file, expected)


@fuzz(20)
@given(st.data())
def test_mrqa(home: pathlib.Path, data: st.DataObject):
  rows, expected = [json_row(data, {"header": {"dataset": "x"}})], []
  for number in range(data.draw(st.integers(1, 4))):
    before, answer, behind = data.draw(TEXT), data.draw(TEXT.filter(bool)), data.draw(TEXT)
    span = [len(before), len(before) + len(answer) - 1]
    found = {"text": "any", "char_spans": [span]}
    question = {"qid": str(number), "question": data.draw(TEXT), "detected_answers": [found]}
    rows.append(json_row(data, {"context": before + answer + behind, "qas": [question]}))
    expected.append((str(number), question["question"], answer))
  fault = fault_in(data, len(rows), first=1)
  if fault:
    bad = {
      "context": "x",
      "qas": [{"qid": "q", "question": "?", "detected_answers": [{"text": "x", "char_spans": [[0, 1]]}]}],
    }
    rows[fault.row] = data.draw(st.sampled_from([rows[fault.row][:-1], json_row(data, bad), rows[0]]))
  file = write_file(data, fresh(home), "x.jsonl", rows, fault)

  def read():
    for context in read_mrqa(file.path):
      ((qid, text, (answer,)),) = context.questions
      ((start, end),) = answer.spans
      yield qid, text, context.text[start:end]

  check(read, file, expected, headers=1)


@fuzz(20)
@given(st.data())
def test_reqa(home: pathlib.Path, data: st.DataObject):
  contexts, rows, expected = [], [], []
  for number in range(data.draw(st.integers(1, 3))):
    sentences = data.draw(st.lists(TEXT.filter(bool), min_size=1, max_size=3))
    contexts.append({"context_id": f"c{number}", "text": "".join(sentences)})
    end = 0
    for place, sentence in enumerate(sentences):
      start, end = end, end + len(sentence)
      name = f"c{number}_{place}"
      rows.append(
        {"candidate_id": name, "context_id": f"c{number}", "response_start": start, "response_end": end}
      )
      expected.append(features.passage(name, sentence))
  fault = fault_in(data, len(rows))
  if fault:
    wrong = [{"response_end": 99}, {"context_id": "c9"}, {"response_start": -1}, {"response_start": True}]
    rows[fault.row] = rows[fault.row] | data.draw(st.sampled_from(wrong))
  folder = fresh(home)
  file = write_file(data, folder, "candidates.jsonl", (json_row(data, row) for row in rows), fault)
  (folder / "contexts.jsonl").write_bytes(b"\n".join(json_row(data, context) for context in contexts))
  check(lambda: read_reqa_corpus(folder), file, expected)


@fuzz(20)
@given(st.data())
def test_nodes_and_edges(home: pathlib.Path, data: st.DataObject):
  ids = data.draw(unique_ids(data.draw(st.integers(1, 5))))
  expected = [Node(id, data.draw(CELL).strip(), data.draw(CELL).strip(), {"tags": ["a", "b"]}) for id in ids]
  table = data.draw(st.booleans())
  if table:
    cells = [["# id", "tags", "text", "title"], *([n.id, " a  b", n.text, n.title] for n in expected)]
  else:
    cells = [
      json_row(data, {"id": n.id, "name": n.title, "text": n.text} | dict(n.features)) for n in expected
    ]
  fault = fault_in(data, len(cells), first=int(table))
  if fault:
    cells[fault.row] = spoil(data, list(cells[fault.row])) if table else cells[fault.row][:-1]
  rows = map(tsv, cells) if table else cells
  file = write_file(data, fresh(home), "nodes.tsv" if table else "nodes.jsonl", rows, fault)
  check(lambda: read_nodes(file.path), file, expected, headers=int(table))

  edges = [Edge(data.draw(st.sampled_from(ids)), data.draw(CELL)) for _ in range(4)]
  pairs = [["# from", "to"], *map(list, edges)]
  fault = fault_in(data, 5, first=1)
  if fault:
    pairs[fault.row] = spoil(data, pairs[fault.row])
  file = write_file(data, fresh(home), "edges.tsv", map(tsv, pairs), fault)
  check(lambda: read_edges(file.path), file, edges, headers=1)
