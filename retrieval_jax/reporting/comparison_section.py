"""The section that sets a run beside others: settings, curves, and each metric's difference over the same queries."""

from collections.abc import Iterable, Sequence
from typing import Final

from retrieval_jax.comparison import Comparison, compare
from retrieval_jax.errors import UserError
from retrieval_jax.reporting.curves_section import dense_by_task, metric_series
from retrieval_jax.reporting.markup import Html, element, figures, folded, joined, note, section, table
from retrieval_jax.reporting.plots import curves, intervals
from retrieval_jax.reporting.run_folder import Evaluation, Run
from retrieval_jax.reporting.series import all_series
from retrieval_jax.reporting.settings import differing

ANCHOR, TITLE = "comparison", "Comparison"
FOLDED_FROM: Final = 12  # settings that only some of the runs use
METRICS: Final = 6  # of a task that are compared: each takes a paired test


def comparison_section(run: Run, others: Sequence[Run]) -> Html:
  """Returns the comparison of the newest evaluations of tasks that the run and another one have in common."""
  runs = [run, *others]
  folders = table(
    ["run", "folder"], [[one.name, element("code", one.folder)] for one in runs], numbers_from=None
  )
  return section(ANCHOR, TITLE, folders, _settings(runs), figures(_curves(runs)), *_tasks(run, others))


def _settings(runs: Sequence[Run]) -> Html:
  configs = {one.name: one.config for one in runs if one.config is not None}
  if len(configs) < 2:
    return note("The settings are not compared: fewer than two of the runs have a config.gin.")
  rows = differing(configs)
  if not rows:
    return note("The runs have the same settings.")
  some = [row for row in rows if None in row[1]]
  if len(some) <= FOLDED_FROM:
    some = []
  parts = [
    element("h3", "Settings that differ"),
    _settings_table([row for row in rows if row not in some], configs),
  ]
  if some:
    parts.append(
      folded(f"{len(some)} settings that only some of the runs use", _settings_table(some, configs))
    )
  return joined(parts)


def _settings_table(rows: Sequence[tuple[str, list[str | None]]], names: Iterable[str]) -> Html:
  cells = [
    [element("code", name), *(element("code", value) if value else "not used" for value in values)]
    for name, values in rows
  ]
  return table(["setting", *names], cells, numbers_from=None)


def _curves(runs: Sequence[Run]) -> list[Html]:
  """Returns the loss of all runs, and the first metric of each task that two of them were evaluated on at several steps."""
  made = []
  losses = {one.name: found["loss"] for one in runs if "loss" in (found := all_series(one.log))}
  if len(losses) > 1:
    made.append(curves("Loss of the training", losses))
  by_run = {one.name: dense_by_task(one) for one in runs}
  for task in by_run[runs[0].name]:
    having = {name: tasks[task] for name, tasks in by_run.items() if task in tasks}
    metric = next(iter(having[runs[0].name][-1].metrics))
    lines = {
      name: metric_series(found, metric)
      for name, found in having.items()
      if len(found) > 1 and all(metric in e.metrics for e in found)
    }
    if len(lines) > 1:
      made.append(curves(f"{task}, {metric}", lines, unit="%"))
  return made


def _tasks(run: Run, others: Sequence[Run]) -> list[Html]:
  parts: list[Html] = []
  for evaluation in run.newest():
    if "confidence_95" not in evaluation.record:
      continue
    same = {other.name: found for other in others if (found := _same(other, evaluation)) is not None}
    if same:
      parts += _task(run, evaluation, same)
  if not parts:
    parts.append(note("The runs have no evaluation of the same task by the same searcher."))
  return parts


def _same(other: Run, evaluation: Evaluation) -> Evaluation | None:
  wanted = evaluation.task, evaluation.kind
  return next((e for e in other.newest() if (e.task, e.kind) == wanted), None)


def _task(run: Run, evaluation: Evaluation, same: dict[str, Evaluation]) -> list[Html]:
  names = list(evaluation.metrics)[:METRICS]
  parts: list[Html] = [element("h3", evaluation.title)]
  rows, lines = [], {}
  for other, found in same.items():
    try:
      compared = compare(str(found.folder), str(evaluation.folder), metrics=names)
    except UserError as error:
      parts.append(note(f"{other}: not compared. {error}"))
      continue
    rows += [_row(other, one) for one in compared]
    lines[f"{run.name} - {other}"] = [
      (one.metric, 100 * one.difference, *(100 * bound for bound in one.interval)) for one in compared
    ]
  if not rows:
    return parts
  steps = ", ".join(f"{name} {one.step:,}" for name, one in {run.name: evaluation, **same}.items())
  shown = {name: values for name, values in lines.items() if len(values) == len(next(iter(lines.values())))}
  parts.append(
    note(
      "Difference: this run minus the other, in points of percent, with its 95% bootstrap interval; p: of a paired randomisation "
      f"test. Steps: {steps}."
    )
  )
  parts.append(figures([intervals("Difference of each metric", shown, axis="points of percent")]))
  parts.append(
    table(
      ["other run", "metric", "other", run.name, "difference", "95% interval", "p", "queries"],
      rows,
      numbers_from=2,
    )
  )
  return parts


def _row(other: str, one: Comparison) -> list[str]:
  low, high = (100 * bound for bound in one.interval)
  return [
    other,
    one.metric,
    f"{100 * one.a:.1f}",
    f"{100 * one.b:.1f}",
    f"{100 * one.difference:+.1f}",
    f"{low:+.1f} to {high:+.1f}",
    f"{one.p_value:.4f}",
    f"{one.queries:,}",
  ]
