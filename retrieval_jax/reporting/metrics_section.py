"""The section of the metrics: each task with its confidence intervals, and the head and tail of extreme classification."""

from collections.abc import Sequence

from retrieval_jax.decile_report import DECILES_FILE, SHOWN, read_deciles
from retrieval_jax.metrics.deciles import Decile
from retrieval_jax.reporting.gin_text import shipped_text
from retrieval_jax.reporting.markup import (
  Html,
  element,
  figures,
  folded,
  joined,
  missing,
  note,
  paragraph,
  section,
  table,
)
from retrieval_jax.reporting.plots import bars
from retrieval_jax.reporting.run_folder import Evaluation, Run
from retrieval_jax.reporting.settings import FLAG, gin_files

ANCHOR, TITLE = "metrics", "Metrics"
DECILES_ANCHOR, DECILES_TITLE = "deciles", "From head to tail"
_DATA = ("DATA_PATH", "TEST_PATH", "DEV_PATH", "CORPUS_PATH", "COLUMNS", "MIXTURE_OR_TASK_NAME", "EVAL_SPLIT")


def metrics_section(run: Run) -> Html:
  """Returns a table for each task: the last evaluation of every searcher, and all others folded."""
  if not run.evaluations:
    return section(ANCHOR, TITLE, missing("Nothing was evaluated. Do it with", eval_command(run)))
  parts: list[Html] = [
    note(
      "In percent. Beside each metric its 95% bootstrap interval: how much the mean depends on which queries were asked. A group "
      "of tasks has the mean of its members and no interval."
    )
  ]
  for task in dict.fromkeys(e.task for e in run.evaluations):
    newest = [e for e in run.newest() if e.task == task]
    others = [e for e in run.evaluations if e.task == task and e not in newest]
    parts += [element("h3", task), _facts(newest[0]), _table(newest)]
    if others:
      parts.append(folded(f"{len(others)} earlier evaluations", _table(others)))
  return section(ANCHOR, TITLE, *parts)


def deciles_section(run: Run) -> Html | None:
  """Returns the deciles of each task that has some, one bar a searcher; None where there are none."""
  parts: list[Html] = []
  for task in dict.fromkeys(e.task for e in run.evaluations):
    found = {
      e.kind: read_deciles(e.folder / DECILES_FILE)
      for e in run.newest()
      if e.task == task and (e.folder / DECILES_FILE).is_file()
    }
    if found:
      parts += [
        element("h3", task),
        _decile_figures(found),
        *(_decile_table(*pair) for pair in found.items()),
      ]
  if not parts:
    return None
  said = note(
    "Labels by falling number of training points, in ten groups of equally many labels. What the groups contribute to p@k sums to "
    "p@k; recall@k is the share of the group's own pairs that were found."
  )
  return section(DECILES_ANCHOR, DECILES_TITLE, said, *parts)


def eval_command(run: Run) -> str:
  """Returns the command that evaluates the run, with the data that its training named as far as that is known."""
  data = [
    name for name in gin_files(run.command) if name.startswith("data/") or "include 'data/" in _include(name)
  ]
  files = [f"--gin_file={name}" for name in data] or ["--gin_file=data/..."]
  flags = [word for word in run.command if word.startswith(tuple(f"{FLAG}{name}=" for name in _DATA))]
  return " ".join(["python -m retrieval_jax.eval", *files, *flags, f"--gin.MODEL_DIR={run.folder}"])


def _include(name: str) -> str:
  return shipped_text(name) or ""


def _facts(evaluation: Evaluation) -> Html:
  record = evaluation.record
  counts = [
    f"{record[name]:,} {said}"
    for name, said in (("queries", "queries"), ("answered", "answered"), ("corpus_size", "passages"))
    if isinstance(record.get(name), int)
  ]
  warned = [
    f"{record[name]:,} {said}"
    for name, said in (
      ("dangling_judgements", "judgements of passages that the corpus lacks"),
      ("dropped_identical", "results left out because they were the query itself"),
      ("dropped_filtered", "results left out because the task filters them"),
      ("empty_passages", "empty passages"),
      ("empty_queries", "empty queries"),
    )
    if record.get(name)
  ]
  members = record.get("tasks")
  if isinstance(members, list):
    counts.append(f"mean of {len(members)} tasks: {', '.join(map(str, members))}")
  return paragraph(", ".join([*counts, *warned]), ".") if counts or warned else Html("")


def _table(evaluations: Sequence[Evaluation]) -> Html:
  names = list(dict.fromkeys(name for e in evaluations for name in e.metrics))
  rows = [[e.kind, f"{e.step:,}", *(_cell(e, name) for name in names)] for e in evaluations]
  return table(["searcher", "step", *names], rows)


def _cell(evaluation: Evaluation, name: str) -> Html:
  """Returns a metric with its interval below."""
  if name not in evaluation.metrics:
    return Html("-")
  value = f"{100 * evaluation.metrics[name]:.1f}"
  interval = evaluation.record.get("confidence_95", {}).get(name)
  if interval is None:
    return joined([value])
  low, high = (100 * bound for bound in interval)
  return joined([value, Html("<br>"), element("small", f"{low:.1f} to {high:.1f}")])


def _decile_figures(found: dict[str, list[Decile]]) -> Html:
  first = next(iter(found.values()))
  groups = [str(number) for number in range(1, len(first) + 1)]
  made = []
  for metric in (SHOWN, SHOWN.replace("p@", "recall@")):
    if all(len(deciles) == len(first) and metric in deciles[0].values for deciles in found.values()):
      heights = {kind: [100 * d.values[metric] for d in deciles] for kind, deciles in found.items()}
      title = (
        f"Contribution to {metric}" if metric.startswith("p@") else f"{metric} of the decile's own pairs"
      )
      made.append(bars(title, groups, heights, unit="%", axis="decile, 1 the head"))
  return figures(made)


def _decile_table(kind: str, deciles: Sequence[Decile]) -> Html:
  names = list(deciles[0].values)
  rows = [
    [
      f"{number}",
      f"{d.labels:,}",
      f"{d.unseen:,}",
      f"{d.most:,} to {d.least:,}",
      f"{d.pairs:,}",
      f"{100 * d.share:.1f}%",
      *(f"{100 * d.values[name]:.2f}" for name in names),
    ]
    for number, d in enumerate(deciles, start=1)
  ]
  sums = [
    f"{100 * sum(d.values[name] for d in deciles):.2f}" if name.startswith("p@") else "" for name in names
  ]
  rows.append(
    ["all", f"{sum(d.labels for d in deciles):,}", f"{sum(d.unseen for d in deciles):,}", "", "", "", *sums]
  )
  heads = [kind, "labels", "never trained on", "training points", "test pairs", "share", *names]
  return table(heads, rows)
