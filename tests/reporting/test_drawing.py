"""Figures as parts of the page: themed colours, text as text, names that are the page's alone."""

import re
import warnings

import numpy as np
import pytest

from retrieval_jax.reporting.drawing import COLORS, INK, LINE, inline
from retrieval_jax.reporting.embedding_maps import PlaneMap
from retrieval_jax.reporting.plots import bars, curves, histogram, intervals, point_map
from retrieval_jax.reporting.series import Series
from tests.reporting.run_files import Page

STEPS = np.arange(1.0, 5)


def test_a_curve_has_a_title_a_label_and_the_colours_of_the_theme():
  figure = curves("Loss <1>", {"a": Series(STEPS, STEPS**2), "b": Series(STEPS, STEPS)}, unit="%")
  page = Page(figure)
  assert page.labels == ["Loss <1> over the steps. a: last 16; b: last 4."]
  assert figure.startswith("<figure><figcaption>Loss &lt;1&gt;</figcaption><svg")
  for name in ("var(--s1)", "var(--s2)", "var(--line)", "currentColor"):
    assert name in figure
  assert not any(color in figure for color in (INK, LINE, *COLORS))
  assert "<style" not in figure
  assert "http" not in figure
  assert {"step", "a", "b"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", figure))


def test_names_are_plain_text_whatever_they_are():
  names = ["_hidden", "a$x_1$ \\frac", "\u6570\u636e <b>", "half \ud800 \x00", "x" * 50]
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    figure = curves("t", {name: Series(STEPS, STEPS) for name in names})
  found = set(re.findall(r"<text[^>]*>([^<]*)</text>", figure))
  cut = f"{'x' * 20}\u2026{'x' * 20}"
  wanted = {"\u200b_hidden", "a$x_1$ \\frac", "\u6570\u636e &lt;b&gt;", "half ? \ufffd", cut}
  assert wanted <= found


def test_names_inside_of_figures_are_the_figures_own():
  one, other = (curves(title, {"a": Series(STEPS, STEPS * i)}) for i, title in enumerate(("x", "y")))
  first, second = Page(one), Page(other)
  assert first.ids
  assert not set(first.ids) & set(second.ids)
  assert set(re.findall(r'(?:href="|url\()#([^")]+)', one)) == set(first.ids)


def test_a_thinned_curve_says_so_and_a_log_axis_needs_values_above_0():
  many = Series(np.arange(1.0, 1000), np.zeros(999))
  figure = curves("x", {"a": many}, log_scale=True)
  assert "each point is the mean of up to 4 records" in figure
  banded = curves("x", {"a": Series(STEPS, STEPS)}, bands={"a": (STEPS - 1, STEPS + 1)})
  assert "fill-opacity" in banded


def test_a_histogram_says_what_is_beyond_its_ends():
  values = np.array([-9.0, 0.5, 0.5, 9])
  figure = histogram("ratios", {"run": values}, bounds=(0, 1), axis="x", mark=1.0)
  assert "not drawn, since beyond the ends: 50%" in figure
  assert Page(figure).labels == ["Histogram: ratios. run: median 0.500."]
  assert "beyond" not in histogram("ratios", {"run": values[1:3]}, bounds=(0, 1), axis="x")


@pytest.mark.parametrize(
  "figure, label",
  [
    (
      lambda: point_map("Map", PlaneMap(np.eye(2), -np.eye(2)), caption="c"),
      "Map of 2 queries and 2 passages in one plane",
    ),
    (
      lambda: bars("Bars", ["1", "2"], {"a": [1.0, 2], "b": [0, 1.0]}, unit="%", axis="x"),
      "Bars, a group of bars each for 1, 2",
    ),
    (
      lambda: intervals("Difference", {"a - b": [("mrr", 1.0, 0.5, 2.0)]}, axis="points"),
      "Difference. a - b, mrr: +1.00.",
    ),
  ],
)
def test_other_figures_have_a_label(figure, label):
  assert Page(figure()).labels == [label]


def test_an_svg_file_becomes_an_element_without_size_and_style():
  svg = (
    '<?xml version="1.0"?>\n<svg xmlns:xlink="http://x" width="1pt" height="2pt" viewBox="0 0 1 2" version="1.1">\n'
    '<metadata>m</metadata><defs>\n <style type="text/css">*{a: b}</style>\n</defs><g id="g"><path id="p"/></g>'
    '<use xlink:href="#p"/></svg>'
  )
  found = inline(svg, 'a "b"')
  assert re.fullmatch(
    r'<svg role="img" aria-label="a &quot;b&quot;" viewBox="0 0 1 2">\n<g><path id="f\w{8}-p"/></g>'
    r'<use href="#f\w{8}-p"/></svg>',
    found,
  )
