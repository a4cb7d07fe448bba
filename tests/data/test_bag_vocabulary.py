"""Feature bags: values of a node, fitting by hand-counted numbers, rows of ids, the file, and mistakes that are named."""

import json
import logging
import pathlib

import numpy as np
import pytest

from retrieval_jax.data import features
from retrieval_jax.data.bag_features import bag_features
from retrieval_jax.data.bag_fitting import Limits, fit, vocabulary_file
from retrieval_jax.data.bag_vocabulary import BagVocabulary, columns, fields, length, tables
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.token_store import token_store
from retrieval_jax.data.vocabularies import Vocabulary
from retrieval_jax.errors import UserError
from tests.data.toy_source import ListSource

SPEC = {"id": ("values", "id"), "ngrams": ("ngrams", "title"), "tags": ("values", "section", "tags")}
ALL = Limits(min_counts={"ngrams": 1})
NODES = (
  {"id": "7", "title": "Red cats", "section": "pets", "tags": ["x", "y z"]},
  {"id": "0", "title": "red CATS purr", "section": "pets", "tags": ["x", "x", "pets"]},
  {"id": "1", "title": "Dogs"},
)
TEXTS = tuple(json.dumps(node) for node in NODES)


def source(*texts: str) -> ListSource:
  """A corpus of these texts, where the first one answers each other."""
  corpus = [features.passage(f"p{i}", text) for i, text in enumerate(texts)]
  pairs = [features.pair(f"p{i}", text, "p0", "") for i, text in enumerate(texts[1:], start=1)]
  return ListSource({"corpus": corpus, "train": pairs}, version=str(texts))


@pytest.fixture
def vocabulary(tmp_path: pathlib.Path) -> BagVocabulary:
  return BagVocabulary(vocabulary_file(source(*TEXTS), SPEC, limits=ALL, cache=tmp_path / "cache"))


@pytest.mark.parametrize(
  "kind, title, expected",
  [
    ("values", "Red cats", ["Red cats"]),
    ("values", ["b", "a", "b", 7, ""], ["b", "a", "7"]),
    ("values", None, []),
    ("words", "The \uff23AT's cat: Ärger", ["the", "cat", "s", "ärger"]),
    ("ngrams", "Red red cats", ["red", "cats", "red red", "red cats"]),
    ("ngrams", ["one two", "three"], ["one", "two", "three", "one two"]),
    ("letters", "cat a", ["<ca", "cat", "at>", "<a>"]),
    ("ngrams", "!?", []),
  ],
)
def test_values_of_a_node(kind: str, title: object, expected: list[str]):
  (feature,) = bag_features({"f": (kind, "title", "absent")})
  assert list(feature.values({"title": title})) == expected


def test_fitted_by_hand(vocabulary: BagVocabulary):
  assert tables(vocabulary) == (("id", 4), ("ngrams", 7), ("tags", 4))
  assert tables(vocabulary, multiple=4) == (("id", 4), ("ngrams", 8), ("tags", 4))
  with pytest.raises(UserError, match="ROWS_MULTIPLE=0: expected a whole number of at least 1"):
    tables(vocabulary, multiple=0)
  # "red", "cats", "red cats", "purr", "cats purr" of the second node; x and pets, of which pets stands twice, of the first.
  assert columns(vocabulary) == (1, 5, 3)
  assert length(vocabulary) == 9
  assert vocabulary.vocab_size == 7
  assert fields(SPEC) == vocabulary.fields == ("id", "title", "section", "tags")
  assert fields({"id": ("values", "id")}, path=vocabulary.path) == vocabulary.fields
  values = [part["values"] for part in json.loads(vocabulary.file.read_text(encoding="utf-8"))["features"]]
  assert values == [
    ["7", "0", "1"],  # one node each: as they come
    ["red", "cats", "red cats", "purr", "cats purr", "dogs"],  # two nodes each, then one
    ["pets", "x", "y z"],
  ]


def test_rows_of_ids(vocabulary: BagVocabulary):
  assert isinstance(vocabulary, Vocabulary)
  rows = [[1, 1, 2, 3, 0, 0, 1, 2, 3], [2, 1, 2, 4, 3, 5, 1, 2, 0], [3, 6, 0, 0, 0, 0, 0, 0, 0]]
  encoded = vocabulary.encode(TEXTS, length=9)
  assert encoded.dtype == np.int32
  assert encoded.tolist() == rows
  assert vocabulary.encode(TEXTS[:1], length=12).tolist() == [rows[0] + [0] * 3]
  assert [row.tolist() for row in vocabulary.encode_ragged(TEXTS, length=9)] == [rows[0], rows[1][:8], [3, 6]]
  # A node that is new: its id, and the words that no node had, have no row. Of too many values the first stay.
  new = json.dumps({"id": "9", "title": "new dogs purr red cats, red cats purr", "tags": ["y z"]})
  assert vocabulary.encode([new, "{}"], length=9).tolist() == [[0, 6, 4, 1, 2, 3, 3, 0, 0], [0] * 9]
  assert vocabulary.encode_ragged(["{}"], length=9)[0].tolist() == [0]
  assert json.loads(vocabulary.decode(rows[1])) == {
    "id": ["0"],
    "ngrams": ["red", "cats", "purr", "red cats", "cats purr"],
    "tags": ["pets", "x"],
  }
  assert json.loads(vocabulary.decode([3, 6])) == {"id": ["1"], "ngrams": ["dogs"], "tags": []}


def test_limits(caplog: pytest.LogCaptureFixture):
  specs = bag_features(SPEC)
  limits = Limits(max_rows={"id": 2, "tags": 2}, max_values={"tags": 1})
  with caplog.at_level(logging.WARNING):
    widths, values = fit(TEXTS, specs, limits, where="toy")
  assert widths == [1, 3, 1]
  assert values == [["7", "0"], ["red", "cats", "red cats"], ["pets", "x"]]
  # Both pets have "pets" and "x" left, one more than there is room for.
  assert [record.message for record in caplog.records] == [
    "toy: 2 of 3 nodes have more than 1 values of 'tags' (up to 2); the last ones are left out. MAX_VALUES = {'tags': ...} "
    "sets another number."
  ]


def test_the_file_is_the_same_for_the_same_texts(tmp_path: pathlib.Path, vocabulary: BagVocabulary):
  again = vocabulary_file(source(*TEXTS), SPEC, limits=ALL, cache=tmp_path / "another")
  assert pathlib.Path(again).read_bytes() == vocabulary.file.read_bytes()
  assert BagVocabulary(again).fingerprint == vocabulary.fingerprint
  assert vocabulary_file(None, SPEC, path=again) == again
  other = vocabulary_file(source(*TEXTS), SPEC, limits=Limits(max_rows={"id": 2}), cache=tmp_path / "cache")
  assert BagVocabulary(other).fingerprint != vocabulary.fingerprint


def test_texts_that_come_as_query_and_as_passage_count_once(tmp_path: pathlib.Path):
  # Without a corpus: the passages and the queries of the pairs, of which "a" is both.
  a, b = json.dumps({"title": "a"}), json.dumps({"title": "b"})
  pairs = [
    features.pair("q", a, "p1", b),
    features.pair("q", a, "p2", json.dumps({"title": ["b", "c"]})),
    features.pair("q2", b, "p3", a),
  ]
  path = vocabulary_file(ListSource({"train": pairs}), {"title": ("values", "title")}, cache=tmp_path)
  assert json.loads(pathlib.Path(path).read_bytes())["features"][0]["values"] == ["b", "c", "a"]


def test_a_token_store_of_bags(vocabulary: BagVocabulary, tmp_path: pathlib.Path):
  from retrieval_jax.data.pair_table import pair_table

  table = pair_table(source(*TEXTS, TEXTS[2][:-1] + ' , "title": "Dogs"}'), tmp_path / "cache")
  inputs = TextInputs(vocabulary, length(vocabulary), length(vocabulary))
  store = token_store(table.passages, inputs.passage_side, source="s", name="toy", cache=tmp_path / "cache")
  assert store.lengths.tolist() == [9, 8, 2, 2]
  assert store.identity.tolist() == [0, 1, 2, 2]
  assert store.gather([2, -1]).tolist() == [[3, 6, 0, 0, 0, 0, 0, 0, 0], [0] * 9]


def test_for_seqio(vocabulary: BagVocabulary):
  pytest.importorskip("seqio")
  assert vocabulary.as_seqio().encode(TEXTS[2]) == [3, 6]


def test_mistakes_in_a_text_are_named(vocabulary: BagVocabulary):
  encode = lambda text: vocabulary.encode([text], length=9)  # noqa: E731
  message = r"got the text 'red cats'; a model of feature bags reads JSON objects with id, title, section, tags, such as"
  with pytest.raises(UserError, match=message + r' \{"title": "\.\.\."\}'):
    encode("red cats")
  with pytest.raises(UserError, match=r"got the text '\[1\]'"):
    encode("[1]")
  with pytest.raises(
    UserError, match=r"has none of the fields that the model reads: id, .*; did you mean 'title'"
  ):
    encode('{"titel": "cats"}')
  with pytest.raises(UserError, match=r"tags is \{'a': 1\}; expected text, a number or a list of those"):
    encode('{"tags": {"a": 1}}')
  with pytest.raises(UserError, match="length 8: expected at least 9"):
    vocabulary.encode(TEXTS, length=8)


@pytest.mark.parametrize(
  "spec, limits, message",
  [
    ({}, {}, "expected at least one, such as"),
    ({"id": "id"}, {}, r"feature 'id': got 'id'; expected its kind and its fields: \('ngrams', 'title'\)"),
    (
      {"id": ("value", "id")},
      {},
      "feature 'id': the kind 'value' is none of values, words, .*did you mean 'values'",
    ),
    ({"id": ("values", "ids")}, {}, "has none of the fields that the model reads: ids; did you mean"),
    (
      {"id": ("values", "id"), "n": ("words", "tittle")},
      {},
      r"toy, split train: no value of the feature 'n' is in 2 nodes \(fields: tittle; 0 values in all\)",
    ),
    (SPEC, {"min_counts": {"tags": 9}}, r"no value of the feature 'tags' is in 9 nodes .* 3 values in all"),
    (SPEC, {"max_rows": {"ngram": 9}}, "MAX_ROWS: 'ngram' is no feature; .*did you mean 'ngrams'"),
    (SPEC, {"max_values": {"id": 0}}, "MAX_VALUES: 'id' is 0; expected a whole number of at least 1"),
    (
      SPEC,
      {"min_counts": 5},
      r"MIN_COUNTS=5: expected the numbers of features by their names, such as MIN_COUNTS = \{'id': 5\}; the features are id, "
      "ngrams, tags",
    ),
    (SPEC, {"max_rows": None}, "MAX_ROWS=None: expected the numbers of features by their names"),
    (SPEC, {"max_values": [("id", 5)]}, r"MAX_VALUES=\[\('id', 5\)\]: expected the numbers of features by"),
  ],
)
def test_mistakes_in_the_setting_are_named(tmp_path: pathlib.Path, spec: dict, limits: dict, message: str):
  with pytest.raises(UserError, match=message):
    vocabulary_file(source(*TEXTS), spec, limits=Limits(**limits), cache=tmp_path)


def test_what_cannot_be_fitted_on():
  with pytest.raises(
    UserError, match="fitted on one task, got NoneType as TRAIN_DATA: set BAG_VOCABULARY_PATH"
  ):
    vocabulary_file(None, SPEC)


@pytest.mark.parametrize(
  "content, message",
  [
    ("red cats", "this is no vocabulary of feature bags: Expecting value: line 1"),
    ("[" * 100_000, "this is no vocabulary of feature bags: "),
    ('{"format": 1, "format": 1}', r"bags: 'format' stands twice in one object\. Training writes one"),
    ('{"model": {}}', r"bags: it has no 'format'; .* Training writes one into MODEL_DIR/vocabulary"),
    ('{"format": true}', "it is of format True; this version reads 1"),
    ('{"format": 9}', "it is of format 9; this version reads 1"),
    ('{"format": 1}', "bags: features is None; expected a list of at least one"),
    ('{"format": 1, "features": []}', r"bags: features is \[\]; expected a list of at least one"),
    ("[]", r"bags: it is \[\]; expected an object with format"),
    (
      '{"format": 1, "features": ["a"]}',
      "bags: a feature is 'a'; expected an object with name, kind, fields",
    ),
  ],
)
def test_files_that_are_no_vocabulary(tmp_path: pathlib.Path, content: str, message: str):
  path = tmp_path / "bags.json"
  path.write_text(content, encoding="utf-8")
  with pytest.raises(UserError, match=rf"^{path}: .*{message}") as error:
    BagVocabulary(str(path))
  assert str(error.value).count(str(path)) == 1


@pytest.mark.parametrize(
  "change, message",
  [
    ({"columns": "Infinity"}, "the feature 'b': columns is inf; expected a whole number from 1 to 16777216"),
    ({"columns": "2.7"}, ".*columns is 2.7; expected a whole number"),
    ({"columns": '"2"'}, ".*columns is '2'; expected a whole number"),
    ({"columns": "true"}, ".*columns is True; expected a whole number"),
    ({"columns": "0"}, ".*columns is 0; expected a whole number"),
    ({"columns": "1" + "0" * 30}, ".*columns is 10{30}; expected a whole number"),
    ({"values": '"abc"'}, "the feature 'b': values is 'abc'; expected a list of texts"),
    ({"values": '["x", null]'}, "the feature 'b': values has None at place 2; expected a list of texts"),
    ({"values": '["x", "y", {}]'}, r".*values has \{\} at place 3; expected a list of texts"),
    ({"values": "[7]"}, ".*values has 7 at place 1; expected a list of texts"),
    ({"values": '["x", "y", "x", "x"]'}, ".*values has 'x' twice"),
    ({"fields": '"id"'}, "the feature 'b': fields is 'id'; expected a list of texts"),
    ({"fields": "[1]"}, ".*fields has 1 at place 1; expected a list of texts"),
    ({"fields": "[]"}, "feature 'b': got .*; expected its kind and its fields"),
    ({"kind": '"value"'}, "feature 'b': the kind 'value' is none of values, .*did you mean 'values'"),
    ({"kind": "[]"}, r"the feature 'b': kind is \[\]; expected text"),
    ({"name": "null"}, "the feature None: name is None; expected text"),
    ({"name": '"a"'}, "two features are called 'a'"),
    ({"columns": None}, "the feature 'b' has no 'columns'; expected an object with name"),
  ],
)
def test_a_file_that_was_edited(tmp_path: pathlib.Path, change: dict[str, str | None], message: str):
  path = tmp_path / "bags.json"
  good = {"kind": '"values"', "fields": '["id"]', "columns": "1", "values": '["x"]'}

  def part(items: dict[str, str | None]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in items.items() if value is not None) + "}"

  parts = [part({"name": '"a"', **good}), part({"name": '"b"', **good})]
  path.write_text(f'{{"format": 1, "features": [{", ".join(parts)}]}}', encoding="utf-8")
  assert BagVocabulary(str(path)).columns == (1, 1)
  parts[1] = part({"name": '"b"', **good, **change})
  path.write_text(f'{{"format": 1, "features": [{", ".join(parts)}]}}', encoding="utf-8")
  with pytest.raises(UserError, match=rf"^{path}: this is no vocabulary of feature bags: {message}") as error:
    BagVocabulary(str(path))
  assert str(error.value).endswith("leave BAG_VOCABULARY_PATH out to have one fitted.")
  assert "Error" not in str(error.value)


def test_the_real_graph(data_dir: pathlib.Path, tmp_path: pathlib.Path):
  from retrieval_jax.data.link_graph import LinkGraph

  spec = {"id": ("values", "id"), "ngrams": ("ngrams", "title"), "categories": ("values", "categories")}
  graph = LinkGraph(str(data_dir / "graph_wikispeedia"), features=fields(spec))
  path = vocabulary_file(graph, spec, cache=tmp_path)
  vocabulary = BagVocabulary(path)
  assert vocabulary.tables == (("id", 4599), ("ngrams", 1508), ("categories", 130))
  assert vocabulary.columns == (1, 16, 3)
