"""The kinds of figures that a report has: curves, histograms, maps of points, bars and intervals."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from retrieval_jax.reporting.drawing import COLORS, INK, LINE, figure_of, legend, panel, plain
from retrieval_jax.reporting.embedding_maps import PlaneMap
from retrieval_jax.reporting.markup import Html
from retrieval_jax.reporting.series import Series, thinned

Band = tuple[Float[np.ndarray, "e"], Float[np.ndarray, "e"]]


def curves(
  title: str,
  lines: Mapping[str, Series],
  *,
  unit: str = "",
  log_scale: bool = False,
  bands: Mapping[str, Band] | None = None,
) -> Html:
  """Returns lines over the steps. unit: of the values. bands: low and high of a line's values, at its steps."""
  with panel() as (figure, axes):
    group = 1
    for number, (name, series) in enumerate(lines.items()):
      points = thinned(series)
      group = max(group, points.group)
      marker = "o" if len(points.steps) < 25 else ""
      color = COLORS[number % len(COLORS)]
      style = "-" if number < len(COLORS) else "--"
      axes.plot(
        points.steps, points.values, style, marker=marker, markersize=3, color=color, label=plain(name)
      )
      if bands and name in bands and points.group == 1:
        axes.fill_between(series.steps, *bands[name], color=color, alpha=0.18, linewidth=0)
    if log_scale and all(np.all(series.values > 0) for series in lines.values()):
      axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high - low < 1e-3 * abs(low):  # a constant but for rounding is drawn as one
      axes.set_ylim(low - 0.1 * abs(low), high + 0.1 * abs(low))
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.xaxis.get_major_locator().set_params(integer=True)  # pyright: ignore[reportCallIssue]  (of a MaxNLocator)
    legend(figure, lines)
    last = "; ".join(f"{name}: last {series.values[-1]:.4g}" for name, series in lines.items())
    caption = f"each point is the mean of up to {group} records" if group > 1 else ""
    return figure_of(figure, title=title, label=f"{title} over the steps. {last}.", caption=caption)


def histogram(
  title: str,
  values: Mapping[str, Float[np.ndarray, "e"]],
  *,
  bounds: tuple[float, float],
  axis: str,
  mark: float | None = None,
) -> Html:
  """Returns the shares of values as outlines over each other; what lies outside of the bounds is not drawn, and said in the
  caption. mark: where a line stands."""
  caption = ""
  edges = np.linspace(*bounds, 51)
  beyond = {name: float(np.mean((x < bounds[0]) | (x > bounds[1]))) for name, x in values.items() if len(x)}
  if any(beyond.values()):
    caption = (
      f"not drawn, since beyond the ends: {', '.join(f'{100 * share:.0f}%' for share in beyond.values())}"
    )
  with panel() as (figure, axes):
    for number, (name, numbers) in enumerate(values.items()):
      shares = np.histogram(numbers, edges)[0] / max(1, len(numbers))
      color = COLORS[number % len(COLORS)]
      axes.stairs(shares, edges, color=color, label=plain(name), linewidth=1.4)
      axes.stairs(shares, edges, color=color, fill=True, alpha=0.15)
    if mark is not None:
      axes.axvline(mark, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel(axis)
    axes.set_ylabel("share")
    axes.set_xlim(*bounds)
    legend(figure, values)
    medians = "; ".join(f"{name}: median {np.median(x):.3f}" for name, x in values.items() if len(x))
    return figure_of(figure, title=title, label=f"Histogram: {title}. {medians}.", caption=caption)


def point_map(title: str, points: PlaneMap, *, caption: str) -> Html:
  """Returns the points of both towers in one plane."""
  with panel(4.1, 3.3) as (figure, axes):
    for name, side, color, marker in (
      ("queries", points.queries, COLORS[0], "o"),
      ("passages", points.passages, COLORS[1], "^"),
    ):
      axes.plot(*side.T, marker, color=color, markersize=2.6, alpha=0.6, markeredgewidth=0, label=plain(name))
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    figure.legend(loc="outside upper left", ncols=2, markerscale=2)
    label = f"{title} of {len(points.queries)} queries and {len(points.passages)} passages in one plane"
    return figure_of(figure, title=title, label=label, caption=caption)


def bars(
  title: str, groups: Sequence[str], values: Mapping[str, Sequence[float]], *, unit: str, axis: str
) -> Html:
  """Returns groups of bars, each with one bar a name."""
  width = 0.8 / len(values)
  with panel(4.1, 2.9) as (figure, axes):
    for number, (name, heights) in enumerate(values.items()):
      places = np.arange(len(groups)) + (number - (len(values) - 1) / 2) * width
      axes.bar(places, heights, width, color=COLORS[number % len(COLORS)], label=plain(name))
    axes.set_xticks(range(len(groups)), list(map(plain, groups)))
    axes.grid(False, axis="x")
    axes.set_xlabel(axis)
    axes.set_ylabel(unit)
    legend(figure, values)
    return figure_of(figure, title=title, label=f"{title}, a group of bars each for {', '.join(groups)}")


def intervals(
  title: str, rows: Mapping[str, Sequence[tuple[str, float, float, float]]], *, axis: str
) -> Html:
  """Returns values with their intervals, a line each.

  rows: name of a series -> (label of a line, value, low, high); all series have the same labels.
  """
  labels = [label for label, *_ in next(iter(rows.values()))]
  with panel(4.1, 1.2 + 0.26 * len(labels) * max(1, len(rows) / 2)) as (figure, axes):
    for number, (name, lines) in enumerate(rows.items()):
      places = np.arange(len(labels)) + (number - (len(rows) - 1) / 2) * 0.6 / len(rows)
      values, low, high = np.array([line[1:] for line in lines]).T
      color = COLORS[number % len(COLORS)]
      axes.errorbar(
        values,
        places,
        xerr=np.maximum([values - low, high - values], 0),
        fmt="o",
        color=color,
        markersize=4,
        label=plain(name),
      )
    axes.axvline(0, color=LINE, linewidth=1)
    axes.set_yticks(range(len(labels)), list(map(plain, labels)))
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel(axis)
    legend(figure, rows)
    said = "; ".join(
      f"{name}, {label}: {value:+.2f}" for name, lines in rows.items() for label, value, *_ in lines
    )
    return figure_of(figure, title=title, label=f"{title}. {said}.")
