"""A training, its evaluations and their report: what the evaluation keeps is what the page shows."""

import json

import numpy as np
import pytest

from retrieval_jax.embedding_sample import read_sample
from retrieval_jax.report import report
from retrieval_jax.worst_file import read_worst
from tests.reporting.run_files import check_page


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
  """MODEL_DIR after four steps of a loss with a gravity, evaluated twice, and with BM25."""
  import gin

  from retrieval_jax import launch as launcher

  folder = tmp_path_factory.mktemp("report") / "run"
  own = [flag for flag in tiny if "losses/" not in flag]
  data = [flag for flag in tiny if "_PATH" in flag or flag.endswith("tsv.gin")]
  for program, flags in (
    (
      "train",
      [
        *own,
        "--gin_file=losses/samtone_sogram.gin",
        "--gin_file=evaluators/retrieval.gin",
        "--gin.EVAL_PERIOD=2",
        "--gin.GRAMIAN_PERIOD=2",
        "--gin.TRAIN_STEPS=4",
      ],
    ),
    ("eval", [*data, "--gin_file=searchers/bm25.gin"]),
  ):
    gin.clear_config()
    launcher.run(program, [*flags, f"--gin.MODEL_DIR={folder}"])
  gin.clear_config()
  return folder


def test_an_evaluation_keeps_what_the_report_needs(trained):
  steps = {
    path.name: {file.name for file in path.iterdir()} for path in (trained / "eval" / "test").iterdir()
  }
  common = {"metrics.json", "run.trec", "per_query.tsv", "worst.jsonl"}
  assert steps == {
    "step_2": {*common, "geometry.npz"},
    "step_4": {*common, "geometry.npz"},
    "bm25_step_0": common,
  }
  own = trained / "eval" / "test" / "step_4"
  sample = read_sample(own / "geometry.npz")
  record = json.loads((own / "metrics.json").read_text(encoding="utf-8"))
  assert sample.queries.shape == sample.passages.shape == (16, 64)
  assert sample.query_norms == pytest.approx(np.ones(16), abs=1e-3)
  pairs = np.sum(sample.queries.astype(np.float32) * sample.passages.astype(np.float32), axis=1)
  assert 2 - 2 * pairs.mean() == pytest.approx(record["alignment"], abs=2e-3)
  # All 16 queries are judged and found something: the first result is at least as near as the query's own passage.
  assert len(sample.top_cosines) == 16
  assert (sample.top_cosines >= pairs - 2e-3).all()


def test_the_worst_queries_agree_with_the_run_file(trained):
  own = trained / "eval" / "test" / "step_4"
  queries = read_worst(own / "worst.jsonl")
  assert len(queries) == 16
  assert [query.value for query in queries] == sorted(query.value for query in queries)
  found: dict[str, list[str]] = {}
  for line in (own / "run.trec").read_text(encoding="utf-8").splitlines():
    found.setdefault(line.split()[0], []).append(line.split()[2])
  for query in queries:
    assert [passage.passage_id for passage in query.retrieved] == found[query.query_id][:5]
    (right,) = query.right
    assert found[query.query_id].index(right.passage_id) + 1 == right.rank
    assert query.text.startswith("find the ")
    assert right.text.endswith("and nothing else")


def test_the_report_of_the_run_has_every_part(trained, tmp_path):
  file = report(str(trained), output=str(tmp_path / "report.html"))
  assert file.stat().st_size < 5e6
  found = check_page(file.read_text(encoding="utf-8"))
  assert {"metrics", "curves", "gramian", "embeddings", "configuration", "worst"} <= set(found.ids)
  labels = "\n".join(found.labels)
  for title in ("Loss", "Metrics of test", "Error of the estimate"):
    assert f"{title} over the steps" in labels
  assert "Both towers, t-SNE of 16 queries and 16 passages" in labels
  assert "bm25" in found.text
  assert "GRAMIAN_PERIOD" in found.text
  assert "find the " in found.text
