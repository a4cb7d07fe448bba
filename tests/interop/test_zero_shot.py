"""A whole evaluation equals that of sentence-transformers and trec_eval: scripts/benchmarks/zero_shot.py on a sample."""

import os
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parent.parent.parent / "scripts" / "benchmarks" / "zero_shot.py"


def test_every_metric_of_minilm_is_that_of_sentence_transformers(data_dir):
  command = [sys.executable, str(SCRIPT), str(data_dir / "xquad_reqa"), "--queries=20"]
  environment = {**os.environ, "XLA_FLAGS": ""}
  done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  lines = [line.split() for line in done.stdout.splitlines()]
  ours, theirs = (
    next(line[2:] for line in lines if name in line) for name in ("retrieval_jax", "sentence-transformers")
  )
  assert len(ours) == 5
  assert ours == theirs
  assert all(50 < float(value) <= 100 for value in ours)  # a model that works, not two that fail alike
