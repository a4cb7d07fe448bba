"""matplotlib's figures as parts of the page: SVG whose text is the page's and whose colours follow its theme."""

import contextlib
import io
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from retrieval_jax.errors import UserError
from retrieval_jax.reporting.markup import Html, element, escaped, printable
from retrieval_jax.reporting.style import SERIES

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

# Colours that stand for the page's own: each is looked for in the SVG and replaced.
INK: Final = "#0a0b0c"
LINE: Final = "#0d0e0f"
LONGEST: Final = 40  # characters of a name in a figure
COLORS: Final = tuple(f"#1a000{number}" for number in range(1, SERIES + 1))
_THEME = {INK: "currentColor", LINE: "var(--line)"} | {
  c: f"var(--s{n})" for n, c in enumerate(COLORS, start=1)
}
_SETTINGS = {
  "svg.fonttype": "none",  # text stays text
  "font.size": 9,
  "text.color": INK,
  "axes.labelcolor": INK,
  "axes.edgecolor": LINE,
  "axes.facecolor": "none",
  "figure.facecolor": "none",
  "savefig.facecolor": "none",
  "axes.grid": True,
  "axes.axisbelow": True,
  "grid.color": LINE,
  "grid.linewidth": 0.6,
  "xtick.color": LINE,
  "ytick.color": LINE,
  "xtick.labelcolor": INK,
  "ytick.labelcolor": INK,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.prop_cycle": "cycler('color', [" + ", ".join(map(repr, COLORS)) + "])",
  "legend.frameon": False,
  "legend.fontsize": 9,
  "lines.linewidth": 1.4,
  "path.simplify_threshold": 0.5,
}


@contextlib.contextmanager
def panel(width: float = 4.1, height: float = 2.8) -> Iterator[tuple["Figure", "Axes"]]:
  """Yields an empty figure, in inches, and its axes; what is drawn inside of the block has the page's look.

  Raises: UserError if matplotlib is not installed.
  """
  try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
  except ImportError as error:
    raise UserError(
      f"Figures need the package matplotlib ({error}). Install it with `pip install 'retrieval-jax[plots]'`."
    ) from error
  with warnings.catch_warnings(), mpl.rc_context(_SETTINGS):  # pyright: ignore[reportArgumentType]
    # matplotlib's own font, which only measures the text, lacks many scripts; the reader's browser has others.
    warnings.filterwarnings("ignore", message="Glyph .* missing")
    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure, figure.add_subplot()


def plain(name: str) -> str:
  """Returns a name as matplotlib takes it to be plain text: no formula between dollars, no hidden label for a "_" in front, and
  no longer than the figure is wide."""
  text = printable(name)
  if len(text) > LONGEST:
    text = f"{text[: LONGEST // 2]}\u2026{text[-LONGEST // 2 :]}"
  return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def legend(figure: "Figure", names: Iterable[str]) -> None:
  """Names the series above the axes, where there are several: side by side if the names are short."""
  lengths = [len(plain(name)) for name in names]
  if len(lengths) > 1:
    figure.legend(loc="outside upper left", ncols=max(1, min(3, 42 // (4 + max(lengths)))))


def figure_of(figure: "Figure", *, title: str, label: str, caption: str = "") -> Html:
  """Returns the figure with its title above it. label: what there is to see, for those who do not see it.

  Called inside of the block of `panel`.
  """
  file = io.StringIO()
  figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
  head = [title, element("small", caption)] if caption else [title]
  return element("figure", element("figcaption", *head), inline(file.getvalue(), label))


def inline(svg: str, label: str) -> Html:
  """Returns an SVG file as an element of an HTML page: without namespaces, size and names that nothing refers to."""
  body = svg[svg.index("<svg") :]
  # Its style is for all elements of the page.
  body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
  body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
  body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
  body = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", body)
  body = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", body, count=1)
  body = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", body, count=1)
  prefix = f"f{zlib.crc32(body.encode()):08x}-"
  used = set(re.findall(r'href="#([^"]+)"', body)) | set(re.findall(r"url\(#([^)]+)\)", body))
  body = re.sub(r'\sid="([^"]*)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", body)
  body = re.sub(r'xlink:href="#', f'href="#{prefix}', body)
  body = re.sub(r"url\(#", f"url(#{prefix}", body)
  for color, name in _THEME.items():
    body = body.replace(color, name)
  body = re.sub(r"\n\s*", "\n", body)
  return Html(body.replace("<svg", f'<svg role="img" aria-label="{escaped(label)}"', 1).strip())
