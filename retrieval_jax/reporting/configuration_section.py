"""The section of the configuration: what was started, and its settings as a difference to the defaults."""

from collections.abc import Sequence

from retrieval_jax.reporting.markup import (
  Html,
  element,
  folded,
  joined,
  missing,
  note,
  paragraph,
  section,
  table,
)
from retrieval_jax.reporting.run_folder import Run
from retrieval_jax.reporting.settings import FLAG, Setting, base_file, changed_from_base

ANCHOR, TITLE = "configuration", "Configuration"
REQUIRED = "%gin.REQUIRED"


def configuration_section(run: Run) -> Html:
  """Returns the settings that differ from the defaults, the versions, and the whole configuration, folded."""
  if run.config is None:
    return section(
      ANCHOR,
      TITLE,
      missing("There is no config.gin: a training writes it.", "python -m retrieval_jax.train ..."),
    )
  parts: list[Html] = []
  if run.command:
    command = " ".join(["python -m", f"retrieval_jax.{run.command[0]}", *map(_quoted, run.command[1:])])
    parts.append(element("pre", command, class_="command"))
  else:
    parts.append(note("There is no versions.json, so the command and the files that it named are not known."))
  changed = changed_from_base(run.config, run.command)
  named, included = ([s for s in changed if s.named is wanted] for wanted in (True, False))
  parts.append(
    paragraph(
      f"{len(named)} settings that the command and the files it names make otherwise than ",
      element("code", base_file(run.command)),
      " and the files they include. A parameter (with a dot) that a file of your own sets is not told from the code's defaults; it "
      "is among all settings below.",
    )
  )
  parts.append(_table(named))
  if included:
    parts.append(folded(f"{len(included)} settings of the files that these include", _table(included)))
  parts.append(folded("All settings (config.gin)", element("pre", run.config)))
  if run.versions:
    parts.append(folded("Versions", _versions(run)))
  if run.totals:
    parts.append(folded("Size of the model and its training", element("pre", "\n".join(run.totals))))
  return section(ANCHOR, TITLE, joined(parts))


def _table(settings: Sequence[Setting]) -> Html:
  return table(
    ["setting", "value", "default", "set by"],
    [
      [
        element("code", s.name),
        element("code", s.value),
        "-" if s.default is None else "required" if s.default == REQUIRED else element("code", s.default),
        "the command" if s.source == FLAG else element("code", s.source),
      ]
      for s in settings
    ],
    numbers_from=None,
  )


def _versions(run: Run) -> Html:
  packages = run.versions.get("packages")
  rows = list(packages.items()) if isinstance(packages, dict) else []
  own = [("Python", run.versions.get("python")), ("git revision of the code", run.versions.get("git"))]
  return table(
    ["package", "version"],
    [[name, element("code", version or "not there")] for name, version in [*own, *rows]],
    numbers_from=None,
  )


def _quoted(word: str) -> str:
  return f"'{word}'" if any(c in word for c in ' ()"<>|&;*$') else word
