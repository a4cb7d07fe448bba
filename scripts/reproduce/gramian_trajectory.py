"""Figures 2 and 3 of Krichene et al. (2019) in miniature: the error of each estimator along one and the same training.

A two-tower model learns a link graph against exact Gramians, encoded anew every --exact steps. All estimators watch it: at
each step they get an estimation batch, then the batch that the step learns from, and every --every steps their Gramians are
compared with the exact ones: ||G_hat - G||_F / ||G||_F of the passages. Prints a table of the means over the early, middle and
late steps, and writes errors.tsv and errors.png.
"""

import argparse
import csv
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from retrieval_jax import optimizers, scoring, sparse_optimizers
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.data.bag_fitting import vocabulary_file
from retrieval_jax.data.bag_vocabulary import BagVocabulary, columns, length, tables
from retrieval_jax.data.dataset import RetrievalData, load, make_batch
from retrieval_jax.data.link_graph import LinkGraph
from retrieval_jax.data.marginals import MarginalOptions, marginal_tables
from retrieval_jax.data.pair_examples import by_pair
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.encoding import Encoder
from retrieval_jax.gramian_tracker import exact_gramians
from retrieval_jax.losses import gramian, gramian_state, pointwise
from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.losses.gramian_matrices import relative_distance
from retrieval_jax.losses.weighted_sum import weighted_sum
from retrieval_jax.models.dual_encoder import TowerPair, dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.paths import output_dir
from retrieval_jax.records import Batch, EmbeddedBatch
from retrieval_jax.table_updates import TableUpdates
from retrieval_jax.train_state import initial_state
from retrieval_jax.train_step import make_train_step

SMALL, LARGE = 128, 1024
FEATURES = {"id": ("values", "id"), "ngrams": ("ngrams", "title"), "categories": ("values", "categories")}
WEIGHT = 10.0


def estimators() -> dict[str, Loss]:
  """Returns the rivals, each fed with an estimation batch before the batch that learns."""
  return {
    "SAGram 1/n": gramian.sagram(beta="in_cone", batches="two"),
    "SAGram 1": gramian.sagram(beta="unbiased", batches="two"),
    **{f"SOGram {alpha}": gramian.sogram(alpha=alpha, batches="two") for alpha in (0.1, 0.05, 0.01, 0.002)},
    "sampling": gramian.batch_gravity(batches="two"),
  }


class Watchers(NamedTuple):
  """All estimators at both batch sizes, with their states, as one jitted function of a step's batches."""

  losses: Mapping[str, tuple[int, Loss]]  # name -> (examples, loss)

  def init(self, embed_dim: int, sizes: DataSizes) -> dict[str, Any]:
    key = jax.random.key(0)
    return {
      name: loss.init(key, embed_dim=embed_dim, data=sizes)[1] for name, (_, loss) in self.losses.items()
    }

  def step(
    self, states: Mapping[str, Any], estimation: EmbeddedBatch, batch: EmbeddedBatch
  ) -> tuple[dict, dict]:
    """Returns the new states, and the estimate of the passages' Gramian that each would have learnt against."""
    new, found = {}, {}
    for name, (size, loss) in self.losses.items():
      state = states[name]
      if loss.before is not None:
        state = loss.before(state, first(estimation, size))
      found[name] = gramian_state.estimates(state)[""].passage
      _, state = loss.apply({}, state, first(batch, size), rng=None, train=True)
      new[name] = state if loss.after is None else loss.after(state)
    return new, found


def first(batch: EmbeddedBatch, size: int) -> EmbeddedBatch:
  """Returns the first examples of a batch without hard negatives."""
  return jax.tree.map(lambda x: x[:size], batch)


class Graph(NamedTuple):
  """What is trained: the model and the pairs."""

  model: TowerPair
  data: RetrievalData


def graph_of(path: pathlib.Path) -> Graph:
  """Returns the towers of 32-dimensional tables and layers of 128 and 64, and the training links."""
  source = LinkGraph(str(path), "train", features=("id", "title", "categories"))
  vocabulary = BagVocabulary(vocabulary_file(source=source, features=FEATURES))
  tower = FeatureBagTower(tables(vocabulary), 32, (128, 64), columns=columns(vocabulary))
  data = by_pair(load(source, TextInputs(vocabulary, length(vocabulary), length(vocabulary))))
  return Graph(
    dual_encoder(tower, sharing="ade_ste"), data._replace(marginals=marginal_tables(data, MarginalOptions()))
  )


def trajectory(graph: Graph, flags: argparse.Namespace) -> list[tuple[int, dict[str, float]]]:
  """Returns (step, error of each estimator) along the training."""
  model, data, part = graph.model, graph.data, partitioner(devices=jax.devices()[:1])
  sizes = DataSizes(data.queries.num_rows, data.passages.num_rows)
  rate = optimizers.schedule(
    "constant * linear_warmup", base_learning_rate=flags.learning_rate, warmup_steps=100
  )
  of_tables = optimizers.schedule("constant * linear_warmup", base_learning_rate=0.1, warmup_steps=100)
  updates = TableUpdates(model, sparse_optimizers.sparse_adagrad(of_tables), ())
  loss = weighted_sum(
    {
      "squared": (0.5, pointwise.squared_error(score=scoring.dot)),
      "gravity": (WEIGHT, gramian.sogram(alpha=1e-6)),
    }
  )
  transform = optimizers.sgd(rate).transform
  state = jax.jit(
    lambda: initial_state(jax.random.key(flags.seed), model, loss, transform, data=sizes, tables=updates)
  )()
  step = jax.jit(
    part.traced(make_train_step(model, loss, transform, seed=flags.seed, tables=updates)), donate_argnums=0
  )
  watchers = Watchers(
    {f"{name} |{size}|": (size, one) for name, one in estimators().items() for size in (SMALL, LARGE)}
  )
  states = watchers.init(model.embed_dim, sizes)

  def watch(states: Mapping[str, Any], params: Any, estimation: Batch, batch: Batch) -> tuple[dict, dict]:
    return watchers.step(states, embedded(model, params, estimation), embedded(model, params, batch))

  watch = jax.jit(part.traced(watch), donate_argnums=0)
  drawn = [_batches(data, size, flags.seed + number) for number, size in enumerate((LARGE, LARGE, SMALL))]
  errors = []
  for number in tqdm(range(flags.steps), desc="trajectory", unit="step", mininterval=1.0):
    params = state.params["model"]
    estimation, other, learnt = (make(number) for make in drawn)
    states, estimates = watch(states, params, estimation, other)
    exact = None
    if number % flags.exact == 0:
      exact = exact_gramians(Encoder(model, params, part, tokens_per_batch=2**16), data)
      state = state.replace(loss_state=gramian_state.replaced(state.loss_state, {"gravity": exact}))
    if number % flags.every == 0 and exact is not None:
      of_step = {name: float(relative_distance(x, exact.passage)) for name, x in estimates.items()}
      errors.append((number, of_step))
    state, metrics = step(state, learnt)
  print(f"loss at the end {float(metrics['loss']):.4f}")
  return errors


def embedded(model: TowerPair, params: Any, batch: Batch) -> EmbeddedBatch:
  """Returns a batch after the towers."""
  query = model.encode_queries(params, batch.query_tokens)
  return EmbeddedBatch.of(batch, query, model.encode_passages(params, batch.passage_tokens))


def _batches(data: RetrievalData, size: int, seed: int) -> Callable[[int], Batch]:
  batcher = shuffled(size)
  plan = batcher.plan(num_examples=data.num_examples, seed=seed)

  def make(step: int) -> Batch:
    batch = make_batch(data, batcher.rows(plan, step), seed=seed, epoch=batcher.epochs(plan, step))
    return batch._replace(positives=batch.positives[:, :1])  # no estimator reads them

  return make


def report(errors: list[tuple[int, dict[str, float]]], steps: int, folder: pathlib.Path) -> None:
  """Prints the table, and writes errors.tsv and, with matplotlib, errors.png."""
  names = list(errors[0][1])
  spans = {"early": (0, 100), "middle": (steps // 4, steps // 2), "late": (3 * steps // 4, steps)}
  with open(folder / "errors.tsv", "w", encoding="utf-8", newline="") as file:
    writer = csv.writer(file, delimiter="\t", lineterminator="\n")
    writer.writerow(["step", *names])
    writer.writerows([step, *(f"{of_step[name]:.5f}" for name in names)] for step, of_step in errors)
  print(
    f"\nrelative error of the passages' Gramian\n{'estimator, batch':24}"
    + "".join(f"{span:>9}" for span in spans)
  )
  for name in names:
    means = [
      np.mean([of_step[name] for step, of_step in errors if low < step <= high])
      for low, high in spans.values()
    ]
    print(f"{name:24}" + "".join(f"{mean:9.3f}" for mean in means))
  try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
  except ImportError:
    print(
      f"{folder / 'errors.png'} is not drawn: plots need pip install 'retrieval-jax[plots]'", file=sys.stderr
    )
    return
  figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), sharey=True)
  for axis, size in zip(axes, (SMALL, LARGE), strict=True):
    for name in names:
      if name.endswith(f"|{size}|"):
        axis.semilogy(
          [s for s, _ in errors], [e[name] for _, e in errors], label=name.split(" |")[0], linewidth=1
        )
    axis.set(title=f"batches of {size}", xlabel="step")
  axes[0].set_ylabel("relative error of the Gramian")
  axes[1].legend(loc="upper right", fontsize="small")
  figure.tight_layout()
  figure.savefig(folder / "errors.png", dpi=120)
  print(f"wrote {folder / 'errors.tsv'} and errors.png")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  shared = os.environ.get("RETRIEVAL_JAX_DATA")
  default = pathlib.Path(shared) / "graph_wikispeedia" if shared else None
  parser.add_argument("--data", type=pathlib.Path, default=default, help="a link graph with categories")
  parser.add_argument("--run", type=pathlib.Path, default=pathlib.Path("runs/gramian/trajectory"))
  parser.add_argument("--steps", type=int, default=3000)
  parser.add_argument(
    "--exact", type=int, default=10, help="steps between two encodings of all nodes; default 10"
  )
  parser.add_argument("--every", type=int, default=20, help="steps between two comparisons; default 20")
  parser.add_argument("--learning_rate", type=float, default=0.03, help="of the dense layers; default 0.03")
  parser.add_argument("--seed", type=int, default=0)
  flags = parser.parse_args()
  if flags.data is None:
    parser.error(
      "--data: name a folder with a link graph, or set RETRIEVAL_JAX_DATA to that of graph_wikispeedia"
    )
  folder = output_dir(str(flags.run), "--run")
  folder.mkdir(parents=True, exist_ok=True)
  if (folder / "errors.tsv").exists():
    print(f"{folder / 'errors.tsv'} is there; delete it to measure again")
    return
  report(trajectory(graph_of(flags.data), flags), flags.steps, folder)


if __name__ == "__main__":
  main()
