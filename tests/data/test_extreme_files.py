"""Readers of the LF layout: what is refused, with file and line, and generated files."""

import json
import pathlib
import re

import pytest
from extreme_folders import LABELS, POINTS, sparse, write, write_json, write_text
from fuzz_files import CELL, fresh, fuzz
from hypothesis import given
from hypothesis import strategies as st
from test_reader_memory import peak, text

from retrieval_jax.data.extreme_files import (
  Point,
  extreme_files,
  read_filter,
  read_labels,
  read_points,
)
from retrieval_jax.data.extreme_rows import TextRule
from retrieval_jax.data.extreme_sparse import Shape, sparse_rows, sparse_shape
from retrieval_jax.errors import UserError

RULE = TextRule(titles_only=True)


def read(folder: pathlib.Path, split: str = "train", num_labels: int = 4) -> list[Point]:
  return list(read_points(extreme_files(folder), split, RULE, num_labels=num_labels))


def sparse_file(tmp_path: pathlib.Path, *lines: str) -> pathlib.Path:
  return write(tmp_path / "trn_X_Y.txt", lines)


def refused(message: str):
  return pytest.raises(UserError, match=re.escape(message))


def test_a_sparse_file(tmp_path: pathlib.Path):
  file = sparse_file(tmp_path, "4 5", "3:1.0 0:1", "", " 4:1.00000  ", "")
  assert sparse_shape(file) == Shape(4, 5)
  assert [row.labels for row in sparse_rows(file)] == [[3, 0], [], [4], []]
  assert [row.where for row in sparse_rows(file)] == [f"{file}:{number}" for number in (2, 3, 4, 5)]


def test_a_sparse_file_without_points(tmp_path: pathlib.Path):
  assert list(sparse_rows(sparse_file(tmp_path, "0 5"))) == []


def test_the_last_line_may_lack_its_end(tmp_path: pathlib.Path):
  file = sparse_file(tmp_path, "2 5", "1:1")
  file.write_bytes(file.read_bytes() + b"2:1")
  assert [row.labels for row in sparse_rows(file)] == [[1], [2]]
  file.write_bytes(b"2 5\r\n1:1\r\n\r\n")
  assert [row.labels for row in sparse_rows(file)] == [[1], []]


@pytest.mark.parametrize(
  "lines, place, message",
  [
    ([], 1, "''; expected the numbers of points and labels"),
    (["1:1.0"], 1, "'1:1.0'; expected the numbers of points and labels"),
    (["-1 5"], 1, "'-1 5'; expected the numbers of points and labels"),
    (["1 0 5"], 1, "three numbers, '1 0 5', begin an old file of points, features and labels"),
    (["1 5", "0:1 5:1"], 2, "the label 5; expected 0..4, for there are 5 labels"),
    (["1 5", "-1:1"], 2, "'-1:1'; expected label:value, such as 42537:1.0"),
    (["2 5", "", "3"], 3, "'3'; expected label:value"),
    (["1 5", "3,4 1:0.5"], 2, "'3,4'; expected label:value"),
    (["1 5", "\u0663:1"], 2, "'\u0663:1'; expected label:value"),
    (["1 5", "2:1 3:1 2:1"], 2, "the label 2 comes twice. A point has a label once"),
    (["1 5", "2:0"], 2, "the value '0' of a label; expected a number greater than 0"),
    (["1 5", "2:-1"], 2, "the value '-1' of a label"),
    (["1 5", "2:nan"], 2, "the value 'nan' of a label"),
    (["1 5", "2:inf"], 2, "the value 'inf' of a label"),
    (["1 5", "2:yes"], 2, "the value 'yes' of a label"),
    (["1 5", "2:"], 2, "the value '' of a label"),
    (["3 5", "1:1", "2:1"], 1, "says 3 points, but 2 lines follow"),
    (["1 5", "1:1", "2:1", ""], 1, "says 1 points, but 3 lines follow"),
  ],
)
def test_a_sparse_file_that_is_refused(tmp_path: pathlib.Path, lines: list[str], place: int, message: str):
  file = sparse_file(tmp_path, *lines)
  with refused(f"{file}:{place}: {message}"):
    list(sparse_rows(file))


def test_values_count_as_1(tmp_path: pathlib.Path, caplog):
  rows = list(sparse_rows(sparse_file(tmp_path, "2 5", "1:0.5 2:1.0", "3:7")))
  assert [row.labels for row in rows] == [[1, 2], [3]]
  assert caplog.messages == [
    f"{tmp_path}/trn_X_Y.txt: 2 values are not 1; a label counts as 1 whatever its value."
  ]


@pytest.mark.parametrize(
  "spoil, message",
  [
    ({"trn.json": '{"title": 3}'}, "trn.json:1: title must be strings; title is 3"),
    ({"trn.json": '{"uid": "x"}'}, "trn.json:1: expected a JSON object with title; 'title' is not in it"),
    (
      {"trn.json": '{"title": "a"}'},
      "trn.json:1: target_ind is None; expected the list of the point's labels",
    ),
    ({"trn.json": '{"title": "a", "target_ind": [0, true]}'}, "trn.json:1: target_ind is [0, True]"),
    ({"trn.json": '{"title": "a", "target_ind": [4]}'}, "trn.json:1: the label 4; expected 0..3"),
    ({"trn.json": '{"title": "a", "target_ind": [-1]}'}, "trn.json:1: the label -1; expected 0..3"),
    ({"trn.json": '{"title": "a", "target_ind": [2, 2]}'}, "trn.json:1: the label 2 comes twice"),
    (
      {"trn.json": '{"title": "a", "target_ind": [2], "target_rel": [0.0]}'},
      "trn.json:1: the value 0.0 of a label",
    ),
    (
      {"trn.json": '{"title": "a", "target_ind": [2], "target_rel": []}'},
      "trn.json:1: target_rel is []; expected 1 values",
    ),
    (
      {"trn.json": '{"title": "a", "content": ["b"], "target_ind": []}'},
      "trn.json:1: content is ['b']; expected text",
    ),
    (
      {"trn.json": '{"title": "a", "target_ind": []}\n\n{"title": "a"}'},
      "trn.json:2: an empty line. Rows are counted",
    ),
    ({"trn_X_Y.txt": "4 5\n\n\n\n"}, "trn_X_Y.txt:1: says 5 labels, but lbl.json has 4"),
    ({"trn_X_Y.txt": "3 4\n\n\n"}, "trn.json: 4 points, but trn_X_Y.txt has 3 rows"),
    ({"trn_X_Y.txt": "5 4\n\n\n\n\n"}, "trn.json: 4 points, but trn_X_Y.txt has 5 rows"),
    ({"trn_X_Y.txt": "5 4\n\n\n\n"}, "trn_X_Y.txt:1: says 5 points, but 4 lines follow"),
    ({"trn_X_Y.txt": "3 4\n\n\n\n"}, "trn_X_Y.txt:1: says 3 points, but 4 lines follow"),
  ],
)
def test_points_that_are_refused(tmp_path: pathlib.Path, spoil: dict[str, str], message: str):
  write_json(tmp_path, ending="")
  for name, content in spoil.items():
    write(tmp_path / name, [content])
  with refused(f"{tmp_path}/{message}"):
    read(tmp_path)


@pytest.mark.parametrize("name, content, message", [
  ("lbl.json", '{"title": "a"}\n\n{"title": "b"}', "lbl.json:2: an empty line"),
  ("lbl.json", '{"title": "a"}\n[]', "lbl.json:2: expected a JSON object with title; got list"),
])  # fmt: skip
def test_labels_that_are_refused(tmp_path: pathlib.Path, name: str, content: str, message: str):
  write_json(tmp_path, ending="")
  write(tmp_path / name, [content])
  with refused(f"{tmp_path}/{message}"):
    list(read_labels(extreme_files(tmp_path), RULE))


def test_a_split_that_is_not_there(tmp_path: pathlib.Path):
  write_json(tmp_path, {"trn": POINTS["trn"]})
  with refused(
    f"{tmp_path}: no points of the split 'test' (tst.json or tst_X.txt); there are those of train."
  ):
    read(tmp_path, "test")


def test_an_empty_line_of_texts_is_an_empty_text(tmp_path: pathlib.Path):
  write_text(tmp_path, {"trn": (("a", [0]), ("", [1]), ("c", []))}, ["x", "", "y", ""])
  assert read(tmp_path) == [Point("a", [0]), Point("", [1]), Point("c", [])]
  assert list(read_labels(extreme_files(tmp_path), RULE)) == ["x", "", "y", ""]


def test_the_sparse_file_counts_beside_json(tmp_path: pathlib.Path, caplog):
  write_json(tmp_path)
  write(
    tmp_path / "trn_X_Y.txt", sparse([[0], [], [3, 1], [2]], 4)
  )  # the third in another order, the fourth differs
  assert [point.labels for point in read(tmp_path)] == [[0], [], [3, 1], [2]]
  assert caplog.messages == [
    f"{tmp_path}/trn.json.gz: 1 points have other labels under target_ind than in trn_X_Y.txt, which counts (the first: "
    f"{tmp_path}/trn.json.gz:4)."
  ]


def test_json_files_go_before_text_files(tmp_path: pathlib.Path):
  write_text(tmp_path, {"trn": (("other", [0]),)}, ["other"])
  write_json(tmp_path)
  (tmp_path / "trn_X_Y.txt").unlink()
  assert [point.text for point in read(tmp_path)] == [text for text, _ in POINTS["trn"]]


@pytest.mark.parametrize("names, message", [
  ((), "expected the labels, lbl.json or Y.txt, and points, trn.json, or trn_X.txt and trn_X_Y.txt"),
  (("lbl.json.gz",), "expected the labels"),
  (("trn.json",), "expected the labels"),
  (("train.txt", "test.txt"), "train.txt and test.txt are of an old release that has features in place of texts"),
  (("Y.txt", "trn_X.txt"), "trn_X.txt is there without trn_X_Y.txt, which says what labels its points have"),
  (("lbl.json", "trn.json", "filter_labels_train.txt", "trn_filter_labels.txt"),
   "filter_labels_train.txt and trn_filter_labels.txt are the same filter. Keep one."),
  (("lbl.json", "lbl.json.gz", "trn.json"), "lbl.json and lbl.json.gz are the same file twice. Keep one."),
  (("lbl.json", "trn.json.gz", "trn.json.zst"), "trn.json.gz and trn.json.zst are the same file twice. Keep one."),
  (("Y.txt", "trn_X.txt", "trn_X_Y.txt", "trn_X_Y.txt.gz"), "trn_X_Y.txt and trn_X_Y.txt.gz are the same file twice"),
])  # fmt: skip
def test_a_folder_that_is_refused(tmp_path: pathlib.Path, names: tuple[str, ...], message: str):
  for name in names:
    write(tmp_path / name, ["{}"])
  with refused(f"{tmp_path}: {message}"):
    extreme_files(tmp_path)


@pytest.mark.parametrize("split, name", [
  ("train", "filter_labels_train.txt"),
  ("train", "trn_filter_labels.txt.gz"),
  ("test", "filter_labels_test.txt"),
  ("test", "tst_filter_labels.txt"),
  ("test", "filter_labels_text.txt"),
])  # fmt: skip
def test_filters_by_each_of_their_names(tmp_path: pathlib.Path, split: str, name: str):
  write_json(tmp_path)
  stem, _, ending = name.partition(".gz")
  write(tmp_path / stem, ["1 3", "0 0"], ".gz" if name.endswith(".gz") else ending)
  assert list(read_filter(extreme_files(tmp_path), split)) == [(1, 3), (0, 0)]
  assert list(read_filter(extreme_files(tmp_path), "test" if split == "train" else "train")) == []


@pytest.mark.parametrize("line, message", [
  ("4 0", "the point 4; expected 0..3, for there are 4. Is the file of another split"),
  ("0 4", "the label 4; expected 0..3, for there are 4."),
  ("0", "'0'; expected the numbers of a point and a label, such as '0 54982'"),
  ("0 -1", "'0 -1'; expected the numbers of a point and a label"),
  ("0 1 2", "'0 1 2'; expected the numbers of a point and a label"),
  ("0 1:1.0", "'0 1:1.0'; expected the numbers of a point and a label"),
])  # fmt: skip
@pytest.mark.parametrize("make", [write_json, write_text])
def test_filter_pairs_that_are_refused(tmp_path: pathlib.Path, line: str, message: str, make):
  make(tmp_path)
  write(tmp_path / "filter_labels_train.txt", ["0 1", line])
  with refused(f"{tmp_path}/filter_labels_train.txt:2: {message}"):
    list(read_filter(extreme_files(tmp_path), "train"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp("fuzz")


ROWS = st.lists(st.lists(st.integers(0, 3), max_size=4, unique=True), max_size=6)
WRONG = ["4:1", "-1:1", "1", "x:1", "0:1 0:1", "1:0", "1:nan", ":1", "1:1:1", "1 :1", "1,2", "1:\ufeff"]


@fuzz(30)
@given(st.data())
def test_generated_sparse_files(home: pathlib.Path, data: st.DataObject):
  rows = data.draw(ROWS)
  lines = sparse(rows, 4)
  wrong = data.draw(st.integers(0, 2)) == 0 and len(rows) > 0
  if wrong:
    row = data.draw(st.integers(0, len(rows) - 1))
    lines[row + 1] = data.draw(st.sampled_from(WRONG))
  file = write(fresh(home) / "trn_X_Y.txt", lines, data.draw(st.sampled_from(["", ".gz"])))
  if not wrong:
    assert [found.labels for found in sparse_rows(file)] == rows
    return
  found, error = [], ""
  try:
    found += (row.labels for row in sparse_rows(file))
  except UserError as refused:
    error = str(refused)
  assert error.startswith(f"{file}:{row + 2}: "), error


@fuzz(30)
@given(st.data())
def test_generated_folders_in_both_layouts(home: pathlib.Path, data: st.DataObject):
  folder = fresh(home)
  cell = CELL.map(lambda text: text.replace("\r", ""))  # at the end of a line it could be the line's
  points = {"trn": [(data.draw(cell), row) for row in data.draw(ROWS)]}
  labels = [data.draw(cell) for _ in range(4)]
  json_layout, text_layout = (
    write_json(folder / "a", points, labels),
    write_text(folder / "b", points, labels),
  )
  rule = TextRule(unescape=data.draw(st.booleans()))
  if (points["trn"] and points["trn"][0][0].startswith("\ufeff")) or labels[0].startswith("\ufeff"):
    return  # a text file's first character would be a byte order mark
  found = []
  for place in (json_layout, text_layout):
    files = extreme_files(place)
    found.append((list(read_labels(files, rule)), list(read_points(files, "train", rule, num_labels=4))))
  assert found[0] == found[1]
  assert [point.labels for point in found[0][1]] == [row for _, row in points["trn"]]


def test_reading_takes_no_memory_for_points(tmp_path: pathlib.Path):
  peaks = []
  for count in (150, 450):
    points = {"trn": [(text(number), [number % 4]) for number in range(count)]}
    write_text(tmp_path / str(count), points, ending=".gz")
    peaks.append(peak(lambda count=count: sum(1 for _ in read_iterator(tmp_path / str(count)))))
  assert peaks[1] - peaks[0] < 500 * 300  # of 10,000 bytes that a point has


def read_iterator(folder: pathlib.Path):
  return read_points(extreme_files(folder), "train", RULE, num_labels=len(LABELS))


def test_json_that_is_written_by_hand(tmp_path: pathlib.Path):
  write(tmp_path / "lbl.json", ['\ufeff{"title": "a", "content": null}', '{"title": "", "content": "b"}'])
  record = {"title": "x\ny", "content": "", "target_ind": [1], "target_rel": [3]}
  write(tmp_path / "trn.json", [json.dumps(record)])
  files = extreme_files(tmp_path)
  assert list(read_labels(files, TextRule())) == ["a", "b"]
  assert list(read_labels(files, RULE)) == ["a", ""]
  assert list(read_points(files, "train", TextRule(), num_labels=2)) == [Point("x\ny", [1])]
