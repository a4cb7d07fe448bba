"""The exact Gramians beside the estimates: their numbers, the pace of a step, and when a warning is due."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import optimizers, scoring
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.data import features
from retrieval_jax.data.dataset import RetrievalData, load, make_batch
from retrieval_jax.data.marginals import MarginalOptions, marginal_tables
from retrieval_jax.data.pair_examples import by_pair
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.example_options import ExampleOptions
from retrieval_jax.gramian_tracker import effective_rate, exact_gramians
from retrieval_jax.loop_options import LoopOptions
from retrieval_jax.losses import gramian, pointwise
from retrieval_jax.losses.weighted_sum import weighted_sum
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.recipe import Recipe
from retrieval_jax.retriever import Retriever
from retrieval_jax.train import train
from retrieval_jax.weights import initial_params
from tests.data.toy_source import ListSource, write_tokenizer

WORDS = ("a", "b", "c", "d", "e", "red", "green", "blue")
# Query i is answered by passages i and 0: 15 pairs, and passage 0 is in eight of them.
SOURCE = ListSource(
  {
    "train": [
      features.pair(f"q{i}", word, f"p{j}", f"{WORDS[j]} {WORDS[j]}")
      for i, word in enumerate(WORDS)
      for j in sorted({0, i})
    ]
  }
)
TOWER = Tower(BertEncoder(num_layers=1, num_heads=2, embed_dim=8, mlp_dim=16), vocab_size=64)
MODEL = dual_encoder(TOWER, sharing="ade")


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> TextInputs:
  return TextInputs(WordPiece(str(write_tokenizer(tmp_path / "tokenizer.json"))), 4, 4)


def test_exact_gramians_are_the_means_over_the_pairs(inputs: TextInputs, tmp_path: pathlib.Path):
  data = by_pair(load(SOURCE, inputs, cache=tmp_path))
  params, part = MODEL.init(jax.random.key(0)), partitioner()
  batch = make_batch(data, np.arange(15), seed=0, epoch=0)
  query = np.asarray(MODEL.encode_queries(params, batch.query_tokens))
  passage = np.asarray(MODEL.encode_passages(params, batch.passage_tokens))
  encoder = Encoder(MODEL, params, part)

  by_frequency = exact_gramians(encoder, _with_marginals(data, "frequency"))
  np.testing.assert_allclose(by_frequency.query, query.T @ query / 15, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(by_frequency.passage, passage.T @ passage / 15, rtol=1e-4, atol=1e-6)

  uniform = exact_gramians(encoder, _with_marginals(data, "uniform"))
  rows = {int(row): vector for row, vector in zip(batch.passage_rows, passage, strict=True)}
  each = np.stack(list(rows.values()))
  assert len(each) == 8
  np.testing.assert_allclose(uniform.passage, each.T @ each / 8, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(uniform.query, by_frequency.query)

  data = _with_marginals(data, "frequency")
  unit = query / np.linalg.norm(query, axis=1, keepdims=True)
  cosines = exact_gramians(encoder, data, unit=True)
  np.testing.assert_allclose(cosines.query, unit.T @ unit / 15, rtol=1e-4, atol=1e-6)


def _with_marginals(data: RetrievalData, kind: str) -> RetrievalData:
  return data._replace(marginals=marginal_tables(data, MarginalOptions(passage=kind)))


def test_the_rate_is_that_of_plain_gradient_steps():
  before = (jnp.array([[1.0, 0.0], [3.0, 2.0]]), jnp.array([[0.0, 1.0], [1.0, 1.0]]))
  gradients = (jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[-1.0, 0.0], [0.0, 2.0]]))
  after = tuple(x - 0.1 * g for x, g in zip(before, gradients, strict=True))
  assert effective_rate(before, after, gradients) == pytest.approx(0.1)  # pyright: ignore[reportArgumentType]  (a pair)
  assert effective_rate(before, before, gradients) == 0
  assert effective_rate(before, after, (jnp.zeros((2, 2)), jnp.zeros((2, 2)))) == 0  # pyright: ignore[reportArgumentType]  (a pair)


def recipe(inputs: TextInputs, *, rate: float, alpha: float, period: int, start: str = "harmonic") -> Recipe:
  terms = {
    "squared": (0.5, pointwise.squared_error(score=scoring.dot)),
    "gravity": (1.0, gramian.sogram(alpha=alpha, start=start)),
  }
  return Recipe(
    Retriever(MODEL, inputs),
    weighted_sum(terms),
    shuffled(8),
    optimizers.sgd(rate),
    SOURCE,
    examples=ExampleOptions("pairs"),
    gramian_period=period,
  )


def records(folder: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in (folder / "train" / "log.jsonl").read_text().splitlines()]


def test_training_logs_how_far_the_estimate_is(inputs: TextInputs, tmp_path: pathlib.Path, capfd):
  folder = tmp_path / "run"
  parts = recipe(inputs, rate=1e-4, alpha=0.5, period=2)
  train(
    parts, model_dir=str(folder), total_steps=4, partitioner=partitioner(), loop=LoopOptions(log_period=1)
  )
  tracked = [record for record in records(folder) if "gramian/gravity" in record]
  assert [record["step"] for record in tracked] == [1, 3]
  assert "gramian/error_query" not in tracked[0]  # no estimate before the first step
  assert 0 < tracked[1]["gramian/error_query"] < 1  # of 8 of the 15 pairs
  for record in tracked:
    assert 1 <= record["gramian/effective_rank_passage"] <= 8
  assert "gramian/stability" not in tracked[0]
  assert tracked[1]["gramian/stability"] > 1  # alpha .5 against 1e-4 times the pull of many parameters
  assert "warning" not in capfd.readouterr().err


def test_an_estimate_that_lags_is_warned_of_once(inputs: TextInputs, tmp_path: pathlib.Path, capfd):
  parts = recipe(inputs, rate=0.05, alpha=1e-4, period=1, start="zero")
  train(parts, model_dir=str(tmp_path / "run"), total_steps=3, partitioner=partitioner())
  said = capfd.readouterr().err
  assert said.count("gramian/stability is") == 1  # of two steps that have an estimate


def test_periods_that_are_refused(inputs: TextInputs, tmp_path: pathlib.Path):
  parts = recipe(inputs, rate=1e-3, alpha=0.5, period=-1)
  with pytest.raises(UserError, match=r"GRAMIAN_PERIOD=-1: expected a whole number"):
    train(parts, model_dir=str(tmp_path / "run"), total_steps=1, partitioner=partitioner())


def test_the_error_is_of_the_estimate_that_the_step_learnt_against(
  inputs: TextInputs, tmp_path: pathlib.Path
):
  """With alpha 1 and no movement the estimate is the batch before, so its error is that batch's own distance."""
  parts = recipe(inputs, rate=1e-12, alpha=1.0, period=1)
  train(parts, model_dir=str(tmp_path / "run"), total_steps=3, partitioner=partitioner())
  errors = [r["gramian/error_passage"] for r in records(tmp_path / "run") if "gramian/error_passage" in r]
  data = _with_marginals(by_pair(load(SOURCE, inputs, cache=tmp_path)), "frequency")
  params = initial_params(parts.retriever, partitioner(), seed=0)
  exact = exact_gramians(Encoder(MODEL, params, partitioner()), data).passage
  expected = []
  for step in (0, 1):
    plan = parts.batcher.plan(num_examples=15, seed=0)
    batch = make_batch(data, parts.batcher.rows(plan, step), seed=0, epoch=parts.batcher.epochs(plan, step))
    passage = np.asarray(MODEL.encode_passages(params, batch.passage_tokens))
    expected.append(np.linalg.norm(passage.T @ passage / 8 - exact) / np.linalg.norm(exact))
  np.testing.assert_allclose(errors, expected, rtol=1e-3)
