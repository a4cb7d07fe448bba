"""Deciles as a file, as text and as a plot."""

import sys

import pytest

from retrieval_jax.decile_report import (
  deciles_text,
  plot_deciles,
  read_deciles,
  report_deciles,
  write_deciles,
)
from retrieval_jax.errors import UserError
from retrieval_jax.metrics.deciles import Decile

DECILES = [
  Decile(2, 0, 9, 5, 30, 0.75, {"p@5": 0.1, "recall@5": 1 / 3}),
  Decile(2, 1, 4, 0, 10, 0.25, {"p@5": 0.02, "recall@5": 0.1}),
]
WORSE = [decile._replace(values={"p@5": 0.01, "recall@5": 0.5}) for decile in DECILES]


def test_a_table_comes_back_as_it_was(tmp_path):
  write_deciles(tmp_path / "a.tsv", DECILES)
  assert (tmp_path / "a.tsv").read_text().splitlines()[0] == (
    "decile\tlabels\tunseen\tmost\tleast\tpairs\tshare\tp@5\trecall@5"
  )
  assert read_deciles(tmp_path / "a.tsv") == DECILES


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda text: text[:-4], r"a.tsv:1: not a whole table of deciles"),
    (
      lambda text: text.replace("decile", "bin", 1),
      r"a.tsv:1: not a whole table of deciles; its columns must begin",
    ),
    (lambda text: text.replace("\t30\t", "\tmany\t"), r"a.tsv:2: not a line of a table of deciles"),
    (lambda text: text.replace("\t0.1\n", "\n"), r"a.tsv:3: not a line of a table of deciles"),
    (lambda text: "", r"a.tsv:1: not a whole table"),
  ],
)
def test_a_damaged_table_is_refused_with_its_line(tmp_path, change, message):
  write_deciles(tmp_path / "a.tsv", DECILES)
  (tmp_path / "a.tsv").write_text(change((tmp_path / "a.tsv").read_text()))
  with pytest.raises(UserError, match=message):
    read_deciles(tmp_path / "a.tsv")


def test_a_table_that_is_not_there(tmp_path):
  with pytest.raises(UserError, match=r"deciles.tsv: no such file. Evaluate a task with label counts first"):
    read_deciles(tmp_path / "deciles.tsv")


def test_the_text_of_two_runs():
  lines = deciles_text({"zero-shot": DECILES, "ngame": WORSE}).splitlines()
  assert [line.split() for line in lines] == [
    ["decile", "labels", "trained", "on", "pairs", "zero-shot", "ngame"],
    ["1", "2", "9", "..", "5", "75.0%", "10.00", "1.00"],
    ["2", "2", "4", "..", "0", "25.0%", "2.00", "1.00"],
    ["p@5", "12.00", "2.00"],
    ["1", "labels", "have", "no", "training", "point."],
  ]
  assert len({len(line) for line in lines[:-1]}) == 1
  assert deciles_text({"a": DECILES}, "recall@5").splitlines()[1:3][0].endswith("33.33")


def test_runs_of_other_deciles_and_metrics_that_are_not_there():
  other = [DECILES[0], DECILES[1]._replace(pairs=11)]
  with pytest.raises(UserError, match="a and b have other deciles: they are not of one task and split"):
    deciles_text({"a": DECILES, "b": other})
  with pytest.raises(UserError, match=r"a: no 'p@3' in its deciles; there are p@5, recall@5"):
    deciles_text({"a": DECILES}, "p@3")


def test_the_plot_is_a_picture(tmp_path):
  pytest.importorskip("matplotlib")
  plot_deciles(tmp_path / "deciles.png", {"zero-shot": DECILES, "ngame": WORSE})
  assert (tmp_path / "deciles.png").read_bytes().startswith(b"\x89PNG\r\n")
  assert [path.name for path in tmp_path.iterdir()] == ["deciles.png"]


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
  with pytest.raises(
    UserError, match=r"Plots need the package matplotlib .*`pip install 'retrieval-jax\[plots\]'"
  ):
    plot_deciles(tmp_path / "deciles.png", {"ngame": DECILES})
  report_deciles(tmp_path, "ngame", DECILES)
  assert [path.name for path in tmp_path.iterdir()] == ["deciles.tsv"]
