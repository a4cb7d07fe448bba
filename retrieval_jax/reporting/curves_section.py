"""The sections of the training: its curves, and of a loss with a gravity the error of the estimated Gramians."""

from collections.abc import Callable, Mapping

import numpy as np

from retrieval_jax.reporting.markup import Html, figures, folded, missing, note, section, table
from retrieval_jax.reporting.plots import curves
from retrieval_jax.reporting.run_folder import DENSE, Evaluation, Run
from retrieval_jax.reporting.series import Series, all_series

ANCHOR, TITLE = "curves", "Training"
GRAMIAN_ANCHOR, GRAMIAN_TITLE = "gramian", "Gramian estimates"
METRICS_SHOWN = 3  # of a task in its curve

Chosen = Callable[[str], bool]


def curves_section(run: Run) -> Html:
  """Returns the curves of the log and those of the metrics over the steps that were evaluated."""
  series = all_series(run.log)
  if not series:
    return section(
      ANCHOR,
      TITLE,
      missing("There is no training log: a training writes it.", "python -m retrieval_jax.train ..."),
    )
  panels = [
    _panel("Loss", series, lambda name: name in ("loss", "eval_loss")),
    _panel("Parts of the loss", series, lambda name: name.endswith("/loss")),
    _panel("Accuracy in the batch", series, lambda name: name.rpartition("/")[2] == "accuracy"),
    *_metric_panels(run),
    _panel("Learning rate", series, lambda name: name.startswith("learning_rate")),
    _panel("Gradient norm", series, lambda name: name == "grad_norm", log_scale=True),
    _panel("Share of the gradient", series, lambda name: name.endswith("/gradient_share")),
    _panel("Examples a second", series, lambda name: name == "examples_per_second"),
  ]
  numbers = folded("All numbers of the log", _numbers(series))
  notes = [note(text) for text in run.notes]
  return section(ANCHOR, TITLE, *notes, figures([panel for panel in panels if panel]), numbers)


def gramian_section(run: Run) -> Html | None:
  """Returns the section of a loss with a gravity; None for another loss."""
  series = all_series(run.log)
  if not any(name.startswith("gramian/") or name.endswith("/trace_ratio_query") for name in series):
    return None
  panels = [
    _panel("Error of the estimate", series, lambda name: name.startswith("gramian/error_")),
    _panel("Estimate to batch, distance", series, lambda name: "/estimate_distance_" in name),
    _panel("Trace, estimate to batch", series, lambda name: "/trace_ratio_" in name),
    _panel(
      "Effective rank of the exact Gramian", series, lambda name: name.startswith("gramian/effective_rank")
    ),
    _panel("Gravity", series, lambda name: name.rpartition("/")[2] == "gravity"),
    _panel("Stability", series, lambda name: name == "gramian/stability", log_scale=True),
  ]
  parts: list[Html] = []
  if any(name.startswith("gramian/") for name in series):
    parts.append(
      note(
        "The error is |estimate - exact| / |exact|, in Frobenius norms, where the exact Gramian is that of all rows of the "
        "training at the step's parameters. 0 is exact; 1 is as wrong as no estimate at all."
      )
    )
  else:
    parts.append(
      missing(
        "The error against the exact Gramians was not measured: it encodes all rows of the training each time. Train with",
        "--gin.GRAMIAN_PERIOD=100",
      )
    )
  return section(GRAMIAN_ANCHOR, GRAMIAN_TITLE, *parts, figures([panel for panel in panels if panel]))


def metric_series(evaluations: list[Evaluation], metric: str) -> Series:
  """Returns a metric in percent over the steps of evaluations of one task."""
  steps = np.array([float(e.step) for e in evaluations])
  return Series(steps, np.array([100 * e.metrics[metric] for e in evaluations]))


def dense_by_task(run: Run) -> Mapping[str, list[Evaluation]]:
  """Returns the evaluations of the model's own search, by task, steps ascending."""
  found: dict[str, list[Evaluation]] = {}
  for evaluation in run.evaluations:
    if evaluation.kind == DENSE and evaluation.metrics:
      found.setdefault(evaluation.task, []).append(evaluation)
  return found


def _metric_panels(run: Run) -> list[Html]:
  """Returns a panel for each task that was evaluated at several steps, the first metric with its interval."""
  panels = []
  for task, evaluations in dense_by_task(run).items():
    if len(evaluations) < 2:
      continue
    names = [name for name in evaluations[0].metrics if all(name in e.metrics for e in evaluations)]
    lines = {name: metric_series(evaluations, name) for name in names[:METRICS_SHOWN]}
    bands = {}
    if names and all("confidence_95" in e.record for e in evaluations):
      pairs = 100 * np.array([e.record["confidence_95"][names[0]] for e in evaluations], np.float64)
      bands = {names[0]: (pairs[:, 0], pairs[:, 1])}
    if lines:
      panels.append(curves(f"Metrics of {task}", lines, unit="%", bands=bands))
  return panels


def _panel(
  title: str, series: Mapping[str, Series], chosen: Chosen, *, log_scale: bool = False
) -> Html | None:
  lines = {name: values for name, values in series.items() if chosen(name)}
  return curves(title, lines, log_scale=log_scale) if lines else None


def _numbers(series: Mapping[str, Series]) -> Html:
  rows = [
    [
      name,
      len(found.steps),
      *(f"{value:.5g}" for value in (found.values[0], found.values[-1])),
      *_extremes(found),
    ]
    for name, found in series.items()
  ]
  return table(["number", "records", "first", "last", "least", "most"], rows)


def _extremes(series: Series) -> tuple[str, str]:
  return f"{series.values.min():.5g}", f"{series.values.max():.5g}"
