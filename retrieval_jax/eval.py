"""The evaluation program: a searcher over tasks, a table, metrics.json and run files. `python -m retrieval_jax.eval`."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from retrieval_jax.errors import UserError
from retrieval_jax.evaluation import RetrievalEvaluator
from retrieval_jax.paths import output_dir
from retrieval_jax.reporting import table
from retrieval_jax.searchers import Searcher


def evaluate(
  searcher: Searcher,
  evaluators: Sequence[RetrievalEvaluator],
  *,
  model_dir: str,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> Mapping[str, Mapping[str, float]]:
  """Runs every evaluator and prints one table; returns {evaluator's name: metrics and geometry}.

  Writes MODEL_DIR/eval/<task>/step_<n>/metrics.json and run.trec. on_start is ignored: the folder's configuration is
  the training's.
  """
  del on_start
  if not evaluators:
    raise UserError("EVALUATORS is empty: name at least one task to evaluate.")
  names = [evaluator.name for evaluator in evaluators]
  if len(set(names)) < len(names):
    raise UserError(
      f"EVALUATORS: two evaluators have the same name ({', '.join(names)}); one would overwrite the other."
    )
  folder = output_dir(model_dir, "MODEL_DIR")
  results = {evaluator.name: evaluator.run(searcher, model_dir=folder) for evaluator in evaluators}
  print(f"{searcher.name} {searcher.checkpoint}")
  # The geometry of the embeddings is no share of anything: metrics.json has it, the table of percents has not.
  print(table({e.name: {metric: results[e.name][metric] for metric in e.metrics} for e in evaluators}))
  for evaluator in evaluators:
    print(f"wrote {evaluator.folder(searcher, folder) / 'metrics.json'}")
  return results


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("eval")
