"""Generated texts, ids and pairs: what is converted is what is read."""

import json
import pathlib

import pytest
from fuzz_files import CELL, TEXT, fresh, fuzz
from hypothesis import given
from hypothesis import strategies as st

from retrieval_jax.data.extreme_conversion import TextFiles, convert
from retrieval_jax.data.extreme_files import extreme_files, read_filter, read_labels, read_points
from retrieval_jax.data.extreme_rows import TextRule
from retrieval_jax.data.extreme_texts import read_texts
from retrieval_jax.errors import UserError

ID = CELL.map(lambda text: text.replace("\r", ""))  # at the end of a line of pairs it could be the line's
RULE = TextRule(unescape=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp("fuzz")


def whole(title: str, text: str) -> str:
  return f"{title.strip()} {text.strip()}".strip()


@fuzz(30)
@given(st.data())
def test_what_is_converted_is_what_is_read(home: pathlib.Path, data: st.DataObject):
  folder = fresh(home)
  folder.mkdir()
  tables = {}
  for name, least in (("points", 1), ("labels", 1), ("tests", 0)):
    ids = data.draw(st.lists(ID, min_size=least, max_size=4, unique=True))
    tables[name] = {id: (data.draw(TEXT), data.draw(TEXT)) for id in ids}
    records = [{"id": id, "title": title, "text": text} for id, (title, text) in tables[name].items()]
    (folder / f"{name}.jsonl").write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in records))
  pairs, wanted = {}, {}
  for name in ("points", "tests"):
    drawn = [
      (point, label)
      for point in tables[name]
      for label in data.draw(st.lists(st.sampled_from(list(tables["labels"])), max_size=4))
    ]
    pairs[name] = drawn
    lines = ["point_id\tlabel_id", *("\t".join(pair) for pair in drawn)]
    (folder / f"{name}.tsv").write_bytes("\n".join(lines).encode())
    order = list(tables["labels"])
    wanted[name] = [
      (whole(title, text), sorted({order.index(label) for point, label in drawn if point == id}))
      for id, (title, text) in tables[name].items()
    ]
  files = TextFiles(
    *(folder / name for name in ("points.jsonl", "labels.jsonl", "points.tsv", "tests.jsonl", "tests.tsv"))
  )
  if any(tables[name] and not pairs[name] for name in pairs):
    with pytest.raises(UserError, match=r"\.tsv: no pairs in it"):
      convert(files, folder / "out")
    return
  counts = convert(files, folder / "out", self_pairs="id")
  found = extreme_files(folder / "out")
  assert list(read_labels(found, RULE)) == [whole(*label) for label in tables["labels"].values()]
  for name, split in (("points", "train"), ("tests", "test")):
    if split in found.points:
      read = read_points(found, split, RULE, num_labels=len(tables["labels"]))
      assert [tuple(point) for point in read] == wanted[name]
      own = [(row, order.index(id)) for row, id in enumerate(tables[name]) if id in tables["labels"]]
      assert list(read_filter(found, split)) == own
    else:
      assert tables[name] == {}
  unique = sum(len(set(drawn)) for drawn in pairs.values())
  assert (counts.pairs, counts.repeated) == (unique, sum(map(len, pairs.values())) - unique)


def test_lines_without_a_tab_have_their_numbers_as_ids(tmp_path: pathlib.Path):
  (tmp_path / "x.txt").write_bytes("a\n\n text \u2028 \n".encode())
  assert [tuple(text.values()) for text in read_texts(tmp_path / "x.txt")] == [
    ("0", "a"),
    ("1", ""),
    ("2", "text"),
  ]
