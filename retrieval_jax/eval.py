"""The evaluation program: a searcher over tasks, a table, metrics.json and run files. `python -m retrieval_jax.eval`."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from retrieval_jax import processes
from retrieval_jax.decile_report import DECILES_FILE, deciles_text, read_deciles
from retrieval_jax.errors import UserError
from retrieval_jax.paths import output_dir
from retrieval_jax.reporting import table
from retrieval_jax.searcher_group import members
from retrieval_jax.searchers import Searcher
from retrieval_jax.task_evaluators import Evaluators, check_names, flat


def evaluate(
  searcher: Searcher,
  evaluators: Evaluators,
  *,
  model_dir: str,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> Mapping[str, Mapping[str, float]]:
  """Runs every evaluator and prints one table; returns {evaluator's name: metrics and geometry}, and for a group of
  tasks its members and their mean. Of a SearcherGroup each member is measured: the names are then "<evaluator>
  <searcher>".

  Writes MODEL_DIR/eval/<task>/step_<n>/metrics.json, run.trec and per_query.tsv, and of a task with propensities
  deciles.tsv and deciles.png, whose table is printed too. The encoder is compiled once for all tasks. on_start is
  ignored: the folder's configuration is the training's.

  Raises: UserError if there is no evaluator, two have one name, or (before anything is encoded) the files of a task are
  missing.
  """
  del on_start
  if not evaluators:
    raise UserError("EVALUATORS is empty: name at least one task to evaluate.")
  check_names(evaluators)
  _check_all_there(evaluators)
  folder = output_dir(model_dir, "MODEL_DIR")
  results: dict[str, Mapping[str, float]] = {}
  rows: dict[str, Mapping[str, float]] = {}
  # The geometry of the embeddings is no share of anything: metrics.json has it, the table of percents has not.
  shown = {e.name: set(e.metric_names) for e in flat(evaluators)}
  searchers = members(searcher)
  for evaluator in evaluators:
    for one in searchers:
      for name, values in evaluator.run_all(one, model_dir=folder).items():
        label = name if len(searchers) == 1 else f"{name} {one.name}"
        results[label] = values
        rows[label] = {metric: value for metric, value in values.items() if metric in shown.get(name, values)}
  if processes.is_first():
    _print(evaluators, searchers, rows, folder)
  return results


def _print(
  evaluators: Evaluators,
  searchers: Sequence[Searcher],
  rows: Mapping[str, Mapping[str, float]],
  folder: pathlib.Path,
) -> None:
  """Prints the table, what deciles there are, and where everything lies."""
  for one in searchers:
    print(f"{one.name} {one.checkpoint}")
  print(table(rows))
  for evaluator in flat(evaluators):
    files = {one.name: evaluator.folder(one, folder) / DECILES_FILE for one in searchers}
    deciles = {name: read_deciles(path) for name, path in files.items() if path.is_file()}
    if deciles:
      print(f"{evaluator.name}, deciles of labels from head to tail\n{deciles_text(deciles)}")
  for evaluator in evaluators:
    for one in searchers:
      print(f"wrote {evaluator.folder(one, folder) / 'metrics.json'}")


def _check_all_there(evaluators: Evaluators) -> None:
  """Raises UserError that names every task whose files are missing: all are there, or none is encoded in vain."""
  problems = []
  for evaluator in flat(evaluators):
    _ = evaluator.metric_names
    try:
      evaluator.source.fingerprint()
    except UserError as error:
      problems.append(f"{evaluator.name}: {error}")
  if problems:
    raise UserError("\n".join(problems))


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("eval")
