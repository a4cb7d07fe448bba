"""The whole page of a run: one HTML file that needs nothing else."""

import datetime
from collections.abc import Sequence

from retrieval_jax.reporting import (
  comparison_section,
  configuration_section,
  curves_section,
  geometry_section,
  metrics_section,
  worst_section,
)
from retrieval_jax.reporting.markup import Html, element, escaped, joined, missing, note
from retrieval_jax.reporting.run_folder import Run
from retrieval_jax.reporting.style import STYLE

# Nothing is fetched, whatever stands in the texts; the icon is an empty one, so that no browser asks for another.
_HEAD = """<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
"""


def page(run: Run, others: Sequence[Run] = ()) -> str:
  """Returns the page: the run's sections, and where other runs are given the comparison with them.

  Raises: UserError for a broken file of the run, and if matplotlib is not installed.

  Example: `page(read_run("/tmp/run"), [read_run("/tmp/other")])`.
  """
  compared = f"python -m retrieval_jax.report {run.folder} --compare OTHER_MODEL_DIR"
  sections: list[tuple[str, str, Html | None]] = [
    (metrics_section.ANCHOR, metrics_section.TITLE, metrics_section.metrics_section(run)),
    (
      comparison_section.ANCHOR,
      comparison_section.TITLE,
      comparison_section.comparison_section(run, others) if others else None,
    ),
    (curves_section.ANCHOR, curves_section.TITLE, curves_section.curves_section(run)),
    (curves_section.GRAMIAN_ANCHOR, curves_section.GRAMIAN_TITLE, curves_section.gramian_section(run)),
    (geometry_section.ANCHOR, geometry_section.TITLE, geometry_section.geometry_section(run, others)),
    (metrics_section.DECILES_ANCHOR, metrics_section.DECILES_TITLE, metrics_section.deciles_section(run)),
    (
      configuration_section.ANCHOR,
      configuration_section.TITLE,
      configuration_section.configuration_section(run),
    ),
    (worst_section.ANCHOR, worst_section.TITLE, worst_section.worst_section(run)),
  ]
  links = [element("li", element("a", title, href=f"#{anchor}")) for anchor, title, body in sections if body]
  foot = [] if others else [missing("Other runs beside this one:", compared)]
  body = joined(
    [
      element(
        "header",
        element("h1", run.name),
        _summary(run),
        element("nav", element("ul", *links), aria_label="sections"),
      ),
      element("main", *(found for *_, found in sections if found)),
      element("footer", *foot),
    ]
  )
  head = f"{_HEAD}<title>{escaped(run.name)}</title>\n<style>{STYLE}</style>\n"
  return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _summary(run: Run) -> Html:
  """Returns one line of what the run is, as far as its files say."""
  said = []
  if run.log:
    first, last = (record.get("time") for record in (run.log[0], run.log[-1]))
    said.append(f"{max(record['step'] for record in run.log):,} steps")
    if isinstance(first, int | float) and isinstance(last, int | float):
      began = datetime.datetime.fromtimestamp(first, datetime.UTC)
      said.append(
        f"trained {began:%Y-%m-%d %H:%M} UTC, {_duration(last - first)} from the first record to the last"
      )
  said += [f"{line.split()[1]} parameters" for line in run.totals if line.startswith("parameters: ")]
  said.append(f"{run.folder}")
  return note("; ".join(said), ".")


def _duration(seconds: float) -> str:
  """Example: `_duration(3725)` is `"1 h 2 min"`."""
  minutes, rest = divmod(round(max(0.0, seconds)), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours:,} h {minutes} min"
  return f"{minutes} min" if minutes >= 10 else f"{minutes} min {rest} s" if minutes else f"{rest} s"
