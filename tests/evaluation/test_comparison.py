"""Two runs compared: the numbers by hand, runs that do not belong together, run files of other tools."""

import numpy as np
import pytest

from retrieval_jax import launch
from retrieval_jax.comparison import compare, comparison_table, measure
from retrieval_jax.errors import UserError
from retrieval_jax.metrics.per_query import write_per_query

QUERIES = [f"q{i}" for i in range(8)]


def write(folder, values, queries=QUERIES):
  folder.mkdir()
  write_per_query(folder / "per_query.tsv", queries, {"mrr": np.array(values, float)})
  return str(folder)


def test_a_difference_by_hand(tmp_path):
  """B wins every query: of the 2^8 ways to swap the runs two are as extreme."""
  a = write(tmp_path / "a", [0.25] * 8)
  b = write(tmp_path / "b", [0.5, 0.75] * 4)
  (found,) = compare(a, b)
  assert (found.metric, found.a, found.b, found.queries) == ("mrr", 0.25, 0.625, 8)
  assert found.difference == 0.375
  assert found.p_value == pytest.approx(2 / 2**8)
  assert 0.25 <= found.interval[0] < 0.375 < found.interval[1] <= 0.5
  table = comparison_table([found], ("a", "b"))
  assert "mrr" in table
  assert "+37.5" in table
  assert "0.0078" in table


def test_a_run_against_itself_in_another_order(tmp_path):
  values = np.linspace(0, 1, 8)
  a = write(tmp_path / "a", values)
  b = write(tmp_path / "b", values[::-1], queries=QUERIES[::-1])
  (found,) = compare(a, b)
  assert (found.difference, found.interval, found.p_value) == (0, (0, 0), 1)


def test_runs_that_do_not_belong_together(tmp_path):
  a = write(tmp_path / "a", [1.0] * 8)
  with pytest.raises(UserError, match="are not of the same queries: 1 are in the first alone"):
    compare(a, write(tmp_path / "b", [1.0] * 7, queries=QUERIES[:7]))
  other = tmp_path / "c"
  other.mkdir()
  write_per_query(other / "per_query.tsv", QUERIES, {"map": np.ones(8)})
  with pytest.raises(UserError, match=r"has mrr and .* map: no metric in common"):
    compare(a, str(other))
  with pytest.raises(UserError, match=r"no per_query\.tsv in it"):
    compare(a, str(tmp_path))


RUN = "q1 Q0 d1 1 3.0 x\nq1 Q0 d2 2 2.0 x\nq2 Q0 d9 1 1.0 x\n"
QRELS = "q1 0 d2 1\nq2 0 d3 2\nq3 0 d1 1\n"


def test_run_files_are_measured_anew_and_every_judged_query_counts(tmp_path):
  (tmp_path / "a.trec").write_text(RUN, encoding="utf-8")
  (tmp_path / "b.trec").write_text(
    RUN.replace("d1 1 3.0", "d1 1 1.5"), encoding="utf-8"
  )  # by score, not by rank
  (tmp_path / "qrels.txt").write_text(QRELS, encoding="utf-8")
  values = measure(tmp_path / "a.trec", tmp_path / "qrels.txt")
  assert values["mrr@10"] == {"q1": 0.5, "q2": 0, "q3": 0}
  paths = [str(tmp_path / name) for name in ("a.trec", "b.trec")]
  found = {c.metric: c for c in compare(paths[0], paths[1], qrels=str(tmp_path / "qrels.txt"))}
  assert (found["mrr@10"].a, found["mrr@10"].b) == pytest.approx((0.5 / 3, 1 / 3))
  (tmp_path / "other.txt").write_text("01 0 d2 1\n", encoding="utf-8")
  with pytest.raises(UserError, match=r"has no query that .* judges"):
    measure(tmp_path / "a.trec", tmp_path / "other.txt")


def test_a_run_that_ends_early_is_said(tmp_path, capsys):
  (tmp_path / "a.trec").write_text(RUN, encoding="utf-8")
  (tmp_path / "qrels.txt").write_text(QRELS, encoding="utf-8")
  measure(tmp_path / "a.trec", tmp_path / "qrels.txt")
  assert "a.trec has no result for 1 of the 3 queries that" in capsys.readouterr().err


def test_what_goes_not_with_a_comparison(tmp_path):
  with pytest.raises(UserError, match="--qrels goes with --compare"):
    launch.run("eval", ["--qrels", "x"])
  with pytest.raises(
    UserError, match=r"--compare reads two results and nothing else; leave MODEL_DIR = 'x' out"
  ):
    launch.run("eval", ["--compare", "a", "b", "--gin.MODEL_DIR=x"])


def test_a_file_that_may_not_be_written_is_a_message(monkeypatch, capsys):
  def refuse(program, argv):
    raise PermissionError(13, "Permission denied", "/somewhere/x.tsv")

  monkeypatch.setattr(launch, "run", refuse)
  with pytest.raises(SystemExit) as stopped:
    launch.main("mine", [])
  assert stopped.value.code == 2
  assert "error: /somewhere/x.tsv: Permission denied. Make room there" in capsys.readouterr().err


def test_the_program_compares_without_a_model(tmp_path, capsys):
  a, b = write(tmp_path / "a", [0.25] * 8), write(tmp_path / "b", [0.5] * 8)
  launch.run("eval", ["--compare", a, b])
  assert "+25.0" in capsys.readouterr().out
