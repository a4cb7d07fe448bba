"""scripts/reproduce/samtone.py: its table and the claims it draws from it, and what it refuses."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from retrieval_jax.embedding_sample import EmbeddingSample, sample_of
from scripts.reproduce import samtone

SCRIPT = pathlib.Path(samtone.__file__)
X, Y = np.eye(2, dtype=np.float32)


def sample(query: np.ndarray, passages: np.ndarray) -> EmbeddingSample:
  """Two pairs: the same query twice, with these passages, the first of which is each query's first result."""
  queries = np.stack([query, query])
  return sample_of((queries, passages), (queries, np.stack([passages[0], passages[0]])))


def row(mrr: list[float], of: EmbeddingSample) -> samtone.Row:
  metrics = [{"p@1": value / 2, "mrr": value, "ndcg@10": value} for value in mrr]
  return samtone.Row(metrics, [samtone.Geometry.of(of)] * len(mrr), [of] * len(mrr))


NEAR = sample(X, np.stack([X, X]))
APART = sample(X, np.stack([X + Y, X + Y]) / np.sqrt(2))


def rows(**better: float) -> dict[tuple[str, str], samtone.Row]:
  """Rows in which SamToNe is 0.02 and 0.04 above the others, and its towers lie together, unless said otherwise."""
  found = {}
  for architecture in samtone.ARCHITECTURES:
    for name in samtone.LOSSES:
      gains = [0.02, 0.04] if name == samtone.QUERY else [0.0, 0.0]
      base = better.get(architecture, 0.0) if name == samtone.STANDARD else 0.0
      of = NEAR if name in (samtone.QUERY, samtone.BOTH) else APART
      found[architecture, name] = row([0.4 + base + gain for gain in gains], of)
  return found


def test_the_geometry_of_two_towers_that_agree_and_of_two_that_do_not():
  assert samtone.Geometry.of(NEAR) == pytest.approx((1.0, 1.0, 0.0))
  # cos(q_i, q_j) = 1, cos(q_i, p_j) = 1 / sqrt 2; the means are a chord of 45 degrees apart. Samples are float16.
  chord = 2 * np.sin(np.pi / 8)
  assert samtone.Geometry.of(APART) == pytest.approx((np.sqrt(0.5), np.sqrt(2), chord), abs=1e-3)


def test_a_line_of_the_table_has_means_deviations_and_the_papers_numbers():
  line = next(line for line in samtone.table(rows()).splitlines() if line.startswith("SDE      SamToNe  "))
  # MRR 42 and 44: mean 43, deviation sqrt(2); P@1 is half of it.
  assert line.split() == [
    "SDE",
    "SamToNe",
    "21.5",
    "±0.7",
    "43.0",
    "±1.4",
    "43.0",
    "±1.4",
    "1.000",
    "1.00",
    "0.00",
    "46.4",
    "58.7",
  ]


def test_claims_that_hold_and_one_that_does_not():
  lines = samtone.claims(rows(SDE=0.1))
  assert "held      ADE: SamToNe above standard, MRR +3.0 ±1.4 (Table 1)" in lines
  assert "NOT held  SDE: SamToNe above standard, MRR -7.0 ±1.4 (Table 1)" in lines
  assert (
    "NOT held  SDE: SamToNe, both towers above SamToNe, MRR -3.0 ±1.4 (Table 3, where the passages differ; here equal ones are masked)"
    in lines
  )
  assert sum(line.startswith("NOT held") for line in lines) == 2
  assert any("0.707 to 1.000 (Figure 5)" in line for line in lines)
  assert any("1.00 (standard 1.41, PAIR 1.41; Figure 6)" in line for line in lines)


def test_figures_are_drawn(tmp_path):
  files = samtone.draw(rows(), tmp_path)
  assert [path.name for path in files] == ["towers.png", "top_cosines.png", "ratios.png"]
  assert all(path.read_bytes().startswith(b"\x89PNG") for path in files)


@pytest.mark.parametrize("flags, message", [
  (["--seeds=0"], "--seeds 0: expected a whole number of at least 1."),
  (["--batch=1"], "--batch 1: expected a whole number of at least 2."),
  (["--data=missing"], "--data missing: expected a folder in BEIR's layout, with qrels/train.tsv and qrels/test.tsv."),
])  # fmt: skip
def test_what_is_refused(tmp_path, flags, message):
  done = subprocess.run(
    [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, cwd=tmp_path, check=False
  )
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].endswith(f"error: {message}")
  assert not list(tmp_path.iterdir())
