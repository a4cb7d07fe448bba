"""The page of a run: every section, what is said of what is missing, texts that are not to be trusted, other runs."""

import re

import pytest

from retrieval_jax.reporting.page import page
from retrieval_jax.reporting.run_folder import read_run
from tests.reporting.run_files import check_page, write_evaluation, write_geometry, write_log, write_run

SECTIONS = {"metrics", "curves", "gramian", "embeddings", "deciles", "configuration", "worst"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return read_run(str(write_run(tmp_path_factory.mktemp("page") / "run")))


@pytest.fixture(scope="module")
def text(run):
  return page(run)


@pytest.fixture(scope="module")
def found(text):
  return check_page(text)


def test_every_section_is_there_and_linked(found):
  assert set(found.ids) >= SECTIONS
  assert {target[1:] for target in found.targets} >= SECTIONS
  assert "comparison" not in found.ids


def test_the_head_says_what_the_run_is(found):
  assert "10 steps" in found.text
  assert "trained 2001-09-09 01:47 UTC, 9 min 0 s from the first record to the last" in found.text
  assert "1,234 parameters" in found.text


def test_metrics_have_their_intervals_and_earlier_ones_are_folded(text, found):
  assert "75.0<br><small>65.0 to 85.0</small>" in text
  assert "25.0<br><small>15.0 to 35.0</small>" in text
  assert "1 earlier evaluations" in found.text
  assert "4 queries, 1,234 passages." in found.text


def test_the_curves_are_drawn_and_all_numbers_listed(found):
  labels = "\n".join(found.labels)
  for title in ("Loss", "Learning rate", "Metrics of toy", "Error of the estimate"):
    assert f"{title} over the steps" in labels
  assert "Gradient norm" not in labels  # it was never finite
  assert "All numbers of the log" in found.text


def test_the_geometry_is_drawn_and_measured(found):
  labels = "\n".join(found.labels)
  assert "Both towers, PCA of 40 queries and 40 passages" in labels
  assert "Both towers, t-SNE of 40 queries and 40 passages" in labels
  assert "Histogram: Query to its first result. first result: median" in labels
  assert "Histogram: Same tower to cross tower. run: median" in labels
  for name in ("effective rank of queries", "length of passages", "ratios within 0.1 of 1", "alignment"):
    assert name in found.text


def test_the_deciles_sum_up(text):
  assert re.search(r"<td>all</td>.*?>6</td>.*?>3</td>.*>30\.00</td>.*>15\.00</td>", text)


def test_settings_and_the_whole_configuration(text, found):
  assert "<code>128</code>" in text
  assert "OWN_SETTING" in found.text
  assert "not told from the code" in found.text
  assert "MODEL/bert.BertEncoder.dtype = 'float32'" in found.text
  assert "--gin.TEMPERATURE=0.05" in found.text
  assert "0.10.2" in found.text


def test_worst_queries_are_shown_as_text(text, found):
  assert "<script" not in text
  assert text.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp;") == 4  # two ids and two texts
  assert "\ud800" not in text
  assert "\x00" not in text
  assert "mrr 12.5" in found.text
  assert "What was right (7)" in found.text
  assert "not found grade 2 a passage that the corpus lacks" in found.text


def test_two_runs_are_set_side_by_side(run, tmp_path):
  other = write_run(tmp_path / "other", shift=-0.5)
  (other / "config.gin").write_text((other / "config.gin").read_text().replace("SEED = 0", "SEED = 7"))
  text = page(run, [read_run(str(other))])
  found = check_page(text)
  assert "comparison" in found.ids
  assert re.search(r"<td><code>SEED</code></td><td><code>0</code></td><td><code>7</code></td>", text)
  labels = "\n".join(found.labels)
  assert "Loss of the training over the steps. run: last 0.3; other: last -0.2" in labels
  assert "toy, mrr over the steps. run: last 75; other: last 62.5" in labels
  assert "Difference of each metric. run - other, mrr: +12.50" in labels
  assert "+12.5" in found.text
  assert "Steps: run 10, other 10." in found.text
  assert "Histogram: Query to its first result. run: median" in labels


def test_many_settings_that_only_one_run_uses_are_folded(run, tmp_path):
  (tmp_path / "other").mkdir()
  more = "".join(f"OWN_{number} = 1\n" for number in range(12))
  (tmp_path / "other" / "config.gin").write_text(f"BATCH_SIZE = 8\n{more}")
  text = page(run, [read_run(str(tmp_path / "other"))])
  shown, folded = text.split("settings that only some of the runs use")[:2]
  assert "<td><code>BATCH_SIZE</code></td><td><code>16</code></td><td><code>8</code></td>" in shown
  assert "OWN_11" not in shown
  assert "<td><code>OWN_11</code></td><td>not used</td><td><code>1</code></td>" in folded


def test_runs_that_cannot_be_compared_are_said(run, tmp_path):
  write_evaluation(tmp_path / "less", 1, [0.5, 0.5])
  text = check_page(page(run, [read_run(str(tmp_path / "less"))])).text
  assert "fewer than two of the runs have a config.gin" in text
  assert "less: not compared." in text
  assert "are not of the same queries" in text
  write_evaluation(tmp_path / "none", 1, [0.5], task="another")
  text = check_page(page(run, [read_run(str(tmp_path / "none"))])).text
  assert "The runs have no evaluation of the same task by the same searcher." in text


def test_what_is_missing_is_said_with_the_command_that_makes_it(tmp_path):
  write_log(tmp_path / "run", [{"step": 1, "time": 1.0, "gravity/trace_ratio_query": 1.0}], end="{")
  found = check_page(page(read_run(str(tmp_path / "run"))))
  for said in (
    "Nothing was evaluated. Do it with python -m retrieval_jax.eval --gin_file=data/... --gin.MODEL_DIR=",
    "No evaluation has a geometry.npz",
    "No evaluation has a worst.jsonl",
    "There is no config.gin: a training writes it.",
    "Train with --gin.GRAMIAN_PERIOD=100",
    "its last line is cut off and left out",
    "--compare OTHER_MODEL_DIR",
  ):
    assert said in found.text
  assert not {"gramian", "embeddings"} - set(found.ids)
  assert "deciles" not in found.ids


def test_a_run_without_a_log_and_with_one_pair(tmp_path):
  own = write_evaluation(tmp_path / "run", 0, [1.0])
  write_geometry(own, pairs=1)
  found = check_page(page(read_run(str(tmp_path / "run"))))
  assert "There is no training log" in found.text
  assert "effective rank of queries" in found.text
  assert "ratios within" not in found.text


def test_many_tasks_stay_a_small_page(tmp_path):
  for number in range(10):
    own = write_evaluation(tmp_path / "run", 0, [0.5, 1.0], task=f"task{number}")
    write_geometry(own, pairs=3)
  found = check_page(page(read_run(str(tmp_path / "run"))))
  assert "Not drawn: task8, task9." in found.text
