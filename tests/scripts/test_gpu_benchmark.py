"""scripts/benchmarks/gpu.py: its parts in small on the CPU, its count of operations by hand, and PyTorch's loss against ours."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def gpu():
  spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_operations_are_counted_by_token_and_by_score(gpu):
  sizes = gpu.Sizes(layers=1, heads=2, head_dim=3, width=5, mlp=7, batch=2, query_length=4, passage_length=8)
  weights = 4 * 5 * 6 + 3 * 5 * 7  # q, k, v, out; the two wi and wo
  query = 4 * 2 * weights + 4 * 4 * 4 * 6  # 4 tokens; scores and values with 4 others, each 2 x 6
  passage = 8 * 2 * weights + 8 * 4 * 8 * 6
  projections, scores = 2 * 2 * 5 * 5, 2 * 2 * 2 * 2 * 5
  assert sizes.flops() == 3 * (2 * (query + passage) + 2 * projections + scores)


def test_t5_1_1_base_costs_what_its_size_says(gpu):
  sizes = gpu.Sizes()
  tokens = 512 * (64 + 256)
  assert 6 * 85e6 * tokens < sizes.flops() < 1.1 * 6 * 85e6 * tokens  # 85 million weights in 12 layers


def test_pytorch_s_loss_is_ours(gpu):
  torch = pytest.importorskip("torch", reason="torch is not installed")
  rng = np.random.default_rng(0)
  q, p = (
    x / np.linalg.norm(x, axis=1, keepdims=True) for x in rng.standard_normal((2, 6, 8)).astype(np.float32)
  )
  scores, alike = (np.exp(q.astype(float) @ x.T / gpu.TEMPERATURE) for x in (p, q))
  np.fill_diagonal(alike, 0)
  right = np.diagonal(scores)
  forward = -np.log(right / (scores.sum(1) + alike.sum(1)))
  backward = -np.log(right / scores.sum(0))
  expected = (forward.mean() + backward.mean()) / 2
  assert float(gpu.torch_samtone(torch.tensor(q), torch.tensor(p))) == pytest.approx(expected, rel=1e-4)


def test_all_parts_run_in_small_on_the_cpu_and_one_that_fails_costs_only_itself(tmp_path):
  found = tmp_path / "gpu.json"
  options = ("--tiny", "--platform=cpu", "--parts=matmul,tiled,torch", "--part_seconds=400", "--seconds=1200")
  command = [sys.executable, SCRIPT, *options, f"--json={found}"]
  done = subprocess.run(
    command, capture_output=True, text=True, cwd=ROOT, env=_environment(tmp_path), timeout=1300, check=False
  )
  assert done.returncode == 0, done.stdout + done.stderr
  parts = json.loads(found.read_text())["parts"]
  assert parts["matmul"]["flops_a_second"] > 0
  assert {"step_seconds", "peak_bytes", "loss", "jax"} <= parts["tiled"].keys()
  # The folder on PYTHONPATH holds a transformers that cannot be imported.
  assert parts["torch"] == {"error": "ImportError: broken on purpose"}
  assert "torch           failed: ImportError: broken on purpose" in done.stdout
  assert "% MFU" in done.stdout


def _environment(folder: pathlib.Path) -> dict[str, str]:
  (folder / "transformers.py").write_text("raise ImportError('broken on purpose')\n")
  return {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": f"{folder}:{ROOT}"}


def test_unknown_parts_are_refused():
  done = subprocess.run(
    [sys.executable, SCRIPT, "--parts=matmul,jax"], capture_output=True, text=True, check=False
  )
  assert done.returncode == 2
  assert "--parts: unknown jax; expected some of matmul, plain, tiled, torch, torch_compiled" in done.stderr
