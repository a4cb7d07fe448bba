"""scripts/prepare_extreme.py: texts become a folder in the LF layout, and a folder is counted."""

import gzip
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from retrieval_jax.data.extreme import ExtremeFolder
from retrieval_jax.data.extreme_files import extreme_files
from retrieval_jax.data.extreme_report import extreme_report, memory_needed
from retrieval_jax.data.extreme_rows import TextRule

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "prepare_extreme.py"


@pytest.fixture(scope="module")
def main():
  spec = importlib.util.spec_from_file_location("prepare_extreme", SCRIPT)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.main


def write(path: pathlib.Path, *lines: str) -> str:
  path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
  return str(path)


@pytest.fixture
def plain(tmp_path: pathlib.Path) -> list[str]:
  """Texts without ids: those of points are a, b, Red, and an empty one."""
  return [
    *("--points", write(tmp_path / "points.txt", "a", "b", "Red", "")),
    *("--labels", write(tmp_path / "labels.txt", "red", "green")),
    *("--pairs", write(tmp_path / "pairs.tsv", "0\t1", "2\t0", "2\t1", "0\t1", "3\t0")),
  ]


def lines(path: pathlib.Path) -> list[str]:
  data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
  return data.decode().split("\n")[:-1]


def test_lines_become_a_folder(main, plain: list[str], tmp_path: pathlib.Path, capsys):
  out = tmp_path / "made" / "titles"
  assert main(["convert", str(out), *plain, "--self_pairs", "text"]) == 0
  assert sorted(path.name for path in out.iterdir()) == [
    "filter_labels_train.txt",
    "lbl.json.gz",
    "trn.json.gz",
    "trn_X_Y.txt",
  ]
  assert lines(out / "trn_X_Y.txt") == ["4 2", "1:1.0", "", "0:1.0 1:1.0", "0:1.0"]
  assert lines(out / "filter_labels_train.txt") == ["2 0"]  # "Red" is the label "red"
  assert [json.loads(line) for line in lines(out / "trn.json.gz")][2:] == [
    {"uid": "2", "title": "Red", "content": "", "target_ind": [0, 1], "target_rel": [1.0, 1.0]},
    {"uid": "3", "title": "", "content": "", "target_ind": [0], "target_rel": [1.0]},
  ]
  assert json.loads(lines(out / "lbl.json.gz")[1]) == {"uid": "1", "title": "green", "content": ""}
  assert capsys.readouterr().out == (
    f"{out}: 4 training points, 0 test points, 2 labels, 4 pairs, 1 filter pair.\n"
    "1 pair came again and is left out.\n"
  )
  assert list((tmp_path / "made").iterdir()) == [out]


def test_ids_titles_and_test_points(main, tmp_path: pathlib.Path):
  out = tmp_path / "out"
  write(
    tmp_path / "labels.jsonl", '{"id": "l1", "title": "Cats", "text": "purr"}', '{"id": 7, "text": "dogs"}'
  )
  flags = [
    *("--points", write(tmp_path / "points.tsv", "id\ttext\ttitle", "p1\tsleep\tCats", "7\tbark\t")),
    *("--labels", str(tmp_path / "labels.jsonl")),
    *("--test_points", write(tmp_path / "test.tsv", "t1\tmore cats", "l1\tx")),
    *("--pairs", write(tmp_path / "pairs.tsv", "point_id\tlabel_id", "t1\tl1", "p1\tl1", "p1\t7")),
  ]
  assert main(["convert", str(out), *flags, "--self_pairs", "id"]) == 0
  assert lines(out / "trn_X_Y.txt") == ["2 2", "0:1.0 1:1.0", ""]
  assert lines(out / "tst_X_Y.txt") == ["2 2", "0:1.0", ""]
  assert lines(out / "filter_labels_train.txt") == ["1 1"]
  assert lines(out / "filter_labels_test.txt") == ["1 0"]
  source = ExtremeFolder(str(out))
  assert [passage["targets"] for passage in source.examples("corpus")] == ["Cats purr", "dogs"]
  assert [pair["inputs"] for pair in source.examples("train")] == ["Cats sleep", "Cats sleep", "bark"]
  assert list(source.filter_pairs("test")) == [("1", "0")]


def test_lines_with_test_pairs_of_their_own(main, plain: list[str], tmp_path: pathlib.Path):
  out = tmp_path / "out"
  more = [
    *("--test_points", write(tmp_path / "test.txt", "c", "d")),
    *("--test_pairs", write(tmp_path / "test_pairs.tsv", "1\t0")),
  ]
  assert main(["convert", str(out), *plain, *more]) == 0
  assert lines(out / "tst_X_Y.txt") == ["2 2", "", "0:1.0"]
  assert lines(out / "filter_labels_test.txt") == []


def test_a_share_is_drawn_by_seed_and_never_parts_equal_texts(main, tmp_path: pathlib.Path):
  texts = [f"text {i // 2}".upper() if i % 2 else f"text {i // 2}" for i in range(400)]
  flags = [
    *("--points", write(tmp_path / "points.txt", *texts)),
    *("--labels", write(tmp_path / "labels.txt", "red")),
    *("--pairs", write(tmp_path / "pairs.tsv", *(f"{i}\t0" for i in range(400)))),
    *("--test_share", "0.25"),
  ]
  parts = []
  for name, seed in (("x", "0"), ("y", "0"), ("z", "1")):
    assert main(["convert", str(tmp_path / name), *flags, "--seed", seed]) == 0
    parts.append([json.loads(line)["uid"] for line in lines(tmp_path / name / "tst.json.gz")])
  test = parts[0]
  assert 64 <= len(test) <= 136  # 100 +- 3 standard deviations of pairs
  assert all(str(int(uid) ^ 1) in test for uid in test)
  assert parts[1] == test
  assert parts[2] != test
  assert (tmp_path / "x" / "trn.json.gz").read_bytes() == (tmp_path / "y" / "trn.json.gz").read_bytes()
  assert (
    extreme_report(extreme_files(tmp_path / "x"), TextRule())["all"][
      "test points whose text is a training point's"
    ]
    == 0
  )


@pytest.mark.parametrize("name, content, flags, message", [
  ("pairs.tsv", "0\t1\n0 1", [], "pairs.tsv:2: 1 columns, expected 2 split by a tab: point_id, label_id."),
  ("pairs.tsv", "0\t1\n4\t1", [], "pairs.tsv:2: no point has the id '4'. Point ids come first."),
  ("pairs.tsv", "0\t1\n0\tgreen", [], "pairs.tsv:2: no label has the id 'green'. Label ids come second."),
  ("pairs.tsv", "0\t11", [], "pairs.tsv:1: no label has the id '11'; did you mean '1'? Label ids come second."),
  ("pairs.tsv", "11\t1", [], "pairs.tsv:1: no point has the id '11'; did you mean '1'? Point ids come first."),
  ("pairs.tsv", "", [], "pairs.tsv: no pairs in it; expected lines of a point's id, a tab and a label's id."),
  ("pairs.tsv", "point_id\tlabel_id\n", [], "pairs.tsv: no pairs in it"),
  ("x", "", ["--test_points", "points.txt", "--test_pairs", "x"], "x: no pairs in it"),
  ("points.txt", '{"id": "a", "text": "b"}', [], "points.txt:1: a JSON object, but by its name no file of JSON lines. Give "
   "it a name that ends in .jsonl."),
  ("labels.txt", '{"id": "a",\t"text": "b"}', [], "labels.txt:1: a JSON object, but by its name no file of JSON lines"),
  ("labels.txt", "x\tred\nx\tgreen", [], "labels.txt"),
  ("labels.txt", "x\tred\nx\tred", [], "labels.txt:2: the id 'x' comes again; it is that of {tmp_path}/labels.txt:1 "
   "too. An id comes once: leave out one of the lines, or give it another id."),
  ("labels.txt", "id\ttext\n\nx\tred\ny\tblue\n\nx\tgreen", [], "labels.txt:6: the id 'x' comes again; it is that of "
   "{tmp_path}/labels.txt:3"),
  ("labels.txt", "red\nx\tgreen", [], "labels.txt:2: a tab, but the first line has none"),
  ("labels.txt", "x\tred\ngreen", [], "labels.txt:2: 1 columns, expected 2"),
  ("points.txt", "", [], "points.txt: none of its 0 points is left for training"),
  ("labels.txt", "", [], "labels.txt: no labels in it"),
  ("x", "", ["--test_share", "1"], "test_share=1.0: expected a share of the points, from 0 to below 1"),
  ("x", "c", ["--test_share", "0.1", "--test_points", "x"], "both test points (x) and a share of 0.1: give one"),
  ("x", "c", ["--test_pairs", "x"], "test pairs (x) without test points: give both"),
  ("x", "c", ["--test_points", "x"], "points.txt and x share 1 ids ('0'): pairs do not say which one they mean"),
  ("x", "c", ["--test_points", "none.txt"], "none.txt: no such file"),
])  # fmt: skip
def test_what_cannot_be_converted(
  main, plain: list[str], tmp_path: pathlib.Path, monkeypatch, capsys, name, content, flags, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / name).write_text(content)
  before = sorted(tmp_path.iterdir())
  assert main(["convert", str(tmp_path / "out"), *plain, *flags]) == 2
  assert message.replace("{tmp_path}", str(tmp_path)) in capsys.readouterr().err
  assert sorted(tmp_path.iterdir()) == before  # nothing half-written


@pytest.mark.parametrize("output, message", [
  ("pairs.tsv/out", "output=pairs.tsv/out: {tmp_path}/pairs.tsv is a file; expected a folder."),
  ("/proc/none/out", "/proc/none/out: the folder cannot be written ("),
])  # fmt: skip
def test_a_place_for_no_folder(
  main, plain: list[str], tmp_path: pathlib.Path, monkeypatch, capsys, output, message
):
  monkeypatch.chdir(tmp_path)
  assert main(["convert", output, *plain]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith("error: " + message.replace("{tmp_path}", str(tmp_path)))
  assert "Errno" not in error


def test_a_full_disk_is_said_by_the_users_path(main, plain: list[str], tmp_path: pathlib.Path, capsys):
  out = tmp_path / "out"
  script = (
    "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    f"resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); sys.argv = {['x', 'convert', str(out), *plain]!r}; "
    f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
  )
  done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].startswith(
    f"error: {out}: the folder cannot be written (File too large)."
  )
  assert not out.exists()
  assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("flag", ["--points", "--labels", "--test_points"])
def test_a_pipe_is_no_file_that_can_be_read_twice(
  main, plain: list[str], tmp_path: pathlib.Path, capsys, flag: str
):
  os.mkfifo(tmp_path / "pipe")
  assert main(["convert", str(tmp_path / "out"), *plain, flag, str(tmp_path / "pipe")]) == 2
  assert f"{tmp_path}/pipe: no regular file. Texts are read twice: write them into a file first." in (
    capsys.readouterr().err
  )


def test_pairs_may_come_from_a_pipe(plain: list[str], tmp_path: pathlib.Path):
  line = [sys.executable, str(SCRIPT), "convert", str(tmp_path / "out"), *plain[:4], "--pairs", "/dev/stdin"]
  subprocess.run(line, input="0\t1\n", text=True, check=True, capture_output=True)
  assert lines(tmp_path / "out" / "trn_X_Y.txt") == ["4 2", "1:1.0", "", "", ""]


def test_a_share_that_draws_no_point_is_said(main, plain: list[str], tmp_path: pathlib.Path, capsys):
  assert main(["convert", str(tmp_path / "out"), *plain, "--test_share", "1e-9"]) == 0
  assert capsys.readouterr().err.splitlines()[-1] == (
    "warning: --test_share 1e-09 of 4 points is no test point, so there is no test split. Give a larger share or another "
    "--seed, or --test_points."
  )


def test_a_folder_that_is_there_stays(main, plain: list[str], tmp_path: pathlib.Path, capsys):
  out = tmp_path / "out"
  out.mkdir()
  assert main(["convert", str(out), *plain]) == 0  # an empty one is taken
  before = (out / "trn_X_Y.txt").read_bytes()
  assert main(["convert", str(out), *plain]) == 2
  assert f"{out} is there already. Name another folder, or remove it first." in capsys.readouterr().err
  assert (out / "trn_X_Y.txt").read_bytes() == before
  link = tmp_path / "link"
  link.symlink_to(tmp_path / "none")
  assert main(["convert", str(link), *plain]) == 2
  assert (
    f"{link} is a link to {tmp_path / 'none'}, which is not there. Make that folder"
    in capsys.readouterr().err
  )


@pytest.fixture
def counted(tmp_path: pathlib.Path) -> pathlib.Path:
  """Labels red, green, blue, RED, and an empty one; points red and green are labels, each labelled with the other."""
  folder = tmp_path / "x_titles"
  folder.mkdir()
  write(folder / "Y.txt", "red", "green", "blue", "RED", "")
  write(folder / "trn_X.txt", "Red", "green", "c", "", "C")
  write(folder / "trn_X_Y.txt", "5 5", "0:1 1:1", "0:1", "", "0:1", "1:1")
  write(folder / "tst_X.txt", "green ", "d", "c")
  write(folder / "tst_X_Y.txt", "3 5", "0:1 2:1", "", "1:1")
  write(folder / "filter_labels_train.txt", "0 0", "0 0", "1 1")
  return folder


def test_what_is_counted(counted: pathlib.Path):
  report = extreme_report(extreme_files(counted), TextRule(titles_only=True))
  assert report["labels"] == {
    "labels": 5,
    "without text": 1,
    "with the text of an earlier one": 1,
    "training points per label, mean": 5 / 5,
    "training points per label, median": 0,
    "training points per label, most": 3,
    "in no training point": 3,
    "in at most 5 training points": 5,
    "share in at most 5 training points": 1.0,
    "in test and in no training point": 1,
    "share of test pairs whose label is in at most 5": 1.0,
  }
  assert report["train"] == {
    "points": 5,
    "pairs": 5,
    "without labels": 1,
    "without text": 1,
    "with the text of an earlier one": 1,
    "labels per point, mean": 5 / 5,
    "labels per point, median": 1,
    "labels per point, most": 2,
    "labels that occur": 2,
    "points that are labels": 2,
    "self pairs: points labelled with themselves": 1,  # Red
    "self pairs in the filter": 2,
    "filter pairs": 2,
    "filter pairs that are labels of their point": 1,
  }
  assert report["test"]["points that are labels"] == 1
  assert report["test"]["self pairs: points labelled with themselves"] == 0
  assert report["all"] == {
    "reciprocal pairs: train pairs that stand the other way round in train": 2,  # red - green, green - red
    "reciprocal pairs: test pairs that stand the other way round in train": 1,  # green - red, of red - green
    "test points whose text is a training point's": 2,
    "rows of text": 13,
    "bytes of text": len("redgreenblueRED") + len("RedgreencC") + len("greendc"),
    "pairs": 8,
  }


def test_bytes_that_are_needed(counted: pathlib.Path):
  report = extreme_report(extreme_files(counted), TextRule(titles_only=True))
  assert memory_needed(report, dim=10, length=4) == {
    "the cache on disk: texts, tokens, pairs": 32 + (40 + 8) * 13 + 8 * 8,
    "memory while it is written": 100 * 8,
    "label embeddings": 4 * 10 * 5,
    "embeddings of training points, to cluster them": 4 * 10 * 5,
    "classifiers": 4 * 10 * 5,
    "classifiers with the two moments of Adam": 12 * 10 * 5,
  }


def test_validate_prints_what_is_counted(main, counted: pathlib.Path, tmp_path: pathlib.Path, capsys):
  assert main(["validate", str(counted), "--dim", "250000", "--json", str(tmp_path / "x.json")]) == 0
  out = capsys.readouterr().out
  assert out.startswith(f"{counted}: texts are titles alone.\n\nlabels\n  labels: 5\n")
  assert "\ntrain\n  points: 5\n" in out
  assert "bytes with 250000 dimensions and 32 tokens a text\n" in out
  assert "  label embeddings: 5 MB\n" in out
  found = json.loads((tmp_path / "x.json").read_bytes())
  assert (found["train"]["points"], found["bytes"]["label embeddings"]) == (5, 5_000_000)
  assert main(["validate", str(counted), "--contents"]) == 0
  assert "texts are titles and contents" in capsys.readouterr().out


@pytest.mark.parametrize("name, content, flags, message", [
  ("trn_X_Y.txt", "5 5\n0:1\n\n5:1\n\n\n", [], "trn_X_Y.txt:4: the label 5; expected 0..4"),
  ("filter_labels_test.txt", "0 9\n", [], "filter_labels_test.txt:1: the label 9; expected 0..4"),
  ("Y.txt", "a\nb\n", [], "trn_X_Y.txt:1: says 5 labels, but Y.txt has 2"),
  ("x", "", ["--encoding", "utf-16"], "encoding='utf-16': expected 'utf-8', 'latin-1'"),
  ("x", "", ["--json", "/nonexistent/x.json"], "--json /nonexistent/x.json: there is no folder /nonexistent. Make it first"),
  ("x", "", ["--json", "/tmp"], "--json /tmp: a folder is there; expected the name of a file."),
  ("x", "", ["--dim", "0"], "--dim 0: expected a whole number of at least 1"),
])  # fmt: skip
def test_validate_stops_at_what_cannot_be_read(
  main, counted: pathlib.Path, capsys, name, content, flags, message
):
  (counted / name).write_text(content)
  assert main(["validate", str(counted), *flags]) == 2
  shown = capsys.readouterr()
  assert "error: " in shown.err
  assert message in shown.err
  assert shown.out == ""


def test_yso_titles_have_their_self_pairs_in_the_filter(data_dir: pathlib.Path):
  report = extreme_report(extreme_files(data_dir / "xc_yso_titles_40k"), TextRule(titles_only=True))
  assert [report["train"][name] for name in list(report["train"])[-4:]] == [6, 6, 6, 6]
  assert report["labels"]["labels"] == 14_491
  assert report["all"]["test points whose text is a training point's"] == 0


def test_help_loads_nothing():
  script = f"""
import runpy, sys
sys.argv = ["prepare_extreme.py", "--help"]
try:
  runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
except SystemExit as end:
  assert end.code == 0
assert not {{"numpy", "jax", "tensorflow"}} & set(sys.modules)
"""
  done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
  assert "convert | validate" in done.stdout
