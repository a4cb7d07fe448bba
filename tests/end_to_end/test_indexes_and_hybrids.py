"""The search of an evaluation, chosen by gin files alone: every index finds what the exact one does, hybrids fuse two."""

import json

import pytest


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory):
  """(MODEL_DIR, flags of its data) of a model that was trained for one step."""
  import gin

  from retrieval_jax import launch

  folder = tmp_path_factory.mktemp("indexes") / "model"
  gin.clear_config()
  launch.run(
    "train", (*tiny, f"--gin.MODEL_DIR={folder}", "--gin.TRAIN_STEPS=1", "--gin.CHECKPOINT_PERIOD=1")
  )
  gin.clear_config()
  return folder, tuple(flag for flag in tiny if "data/" in flag or "PATH" in flag)


def _run(folder):
  """Returns {query: {passage: (rank, score)}} of a run file."""
  found: dict[str, dict[str, tuple[int, float]]] = {}
  for line in (folder / "run.trec").read_text(encoding="utf-8").splitlines():
    query, _, passage, rank, score, _ = line.split()
    found.setdefault(query, {})[passage] = int(rank), float(score)
  return found


def _evaluate(launch, model, *flags):
  """Returns the folder of the results."""
  folder, data = model
  (name,) = launch("eval", *data, f"--gin.MODEL_DIR={folder}", *flags)
  return folder / "eval" / name


@pytest.mark.parametrize("index", ["faiss_flat", "faiss_ivf", "faiss_hnsw"])
def test_every_index_finds_what_the_exact_one_does(model, launch, index):
  exact = _run(_evaluate(launch, model, "--gin_file=indexes/exact.gin") / "step_1")
  found = _run(_evaluate(launch, model, f"--gin_file=indexes/{index}.gin") / "step_1")
  assert len(exact) == 16
  for query, passages in exact.items():
    assert {p: rank for p, (rank, _) in found[query].items()} == {
      p: rank for p, (rank, _) in passages.items()
    }


def test_reciprocal_ranks_of_the_checkpoint_and_bm25(model, launch):
  folder = _evaluate(launch, model, "--gin_file=searchers/hybrid_rrf.gin", "--gin.RRF_CONSTANT=10.0")
  dense, bm25 = (
    _run(_evaluate(launch, model, *flags) / name)
    for name, flags in {"step_1": (), "bm25_step_0": ("--gin_file=searchers/bm25.gin",)}.items()
  )
  record = json.loads((folder / "hybrid_rrf_step_1" / "metrics.json").read_text(encoding="utf-8"))
  assert record["searcher"] == "hybrid_rrf"
  assert record["checkpoint"].endswith("checkpoint_1 + bm25(k1=1.2, b=0.75)")
  for query, passages in _run(folder / "hybrid_rrf_step_1").items():
    for passage, (_, score) in passages.items():
      ranks = [run[query][passage][0] for run in (dense, bm25) if passage in run[query]]
      assert score == pytest.approx(sum(1 / (10 + rank) for rank in ranks), rel=1e-5)


def test_weights_of_the_checkpoint_and_bm25(model, launch):
  """With all the weight on one side, its ranking."""
  flags = ("--gin_file=searchers/hybrid_weighted.gin", "--gin.FUSION_WEIGHTS=[0.0, 1.0]")
  weighted = _run(_evaluate(launch, model, *flags) / "hybrid_weighted_step_1")
  bm25 = _run(_evaluate(launch, model, "--gin_file=searchers/bm25.gin") / "bm25_step_0")
  for query, passages in bm25.items():
    scores = [score for _, score in passages.values()]
    for passage, (_, score) in passages.items():
      share = (score - min(scores)) / (max(scores) - min(scores))
      assert weighted[query][passage][1] == pytest.approx(share, abs=1e-5)
