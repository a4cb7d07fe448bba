"""Writes docs/configuration.md, every gin file and macro that is shipped, from the files of configs/.

python scripts/write_configuration_reference.py            # after a change in configs/
python scripts/write_configuration_reference.py --check    # says whether the page is up to date; writes nothing
"""

import argparse
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from retrieval_jax import configuration
from retrieval_jax.paths import atomic_write

ROOT: Final = pathlib.Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "configuration.md"
AGAIN: Final = "python scripts/write_configuration_reference.py"

# Folder of configs/ -> what its files are for, in the order of the page.
KINDS: Final[Mapping[str, str]] = {
  "runs": "What each program reads first, by itself; you name none of these. Their macros are the programs' settings.",
  "experiments": "Complete trainings: `train` with one of these needs `MODEL_DIR` alone.",
  "papers": "Settings of published results, each for the machine that its head names.",
  "models": "Towers, vocabulary and where the weights come from: `MODEL`, `INPUTS`, `PRETRAINED`.",
  "towers": "What the files of models/ include: the settings that all models of one kind share.",
  "sharing": "What the two towers share. After a file of models/.",
  "losses": "The training's loss: `LOSS`. [Which one to take](choose_a_loss.md).",
  "softmax": "Options that the softmax losses include, and what may follow a loss.",
  "batching": "Which examples share a batch: `BATCHER`. [Which one to take](choose_batches.md).",
  "negatives": "Hard negatives that are mined while training.",
  "optimizers": "The optimizer with its schedule: `OPTIMIZER`.",
  "data": "Where queries and passages come from: `TRAIN_DATA` and `EVAL_DATA`. [Formats](data.md).",
  "evaluators": "What `eval` and a training measure: `EVALUATORS`.",
  "evaluation": "How much is measured, and the held-out loss.",
  "searchers": "What searches, in the place of the checkpoint alone: `SEARCHER`.",
  "indexes": "How the checkpoint's embeddings are searched: `INDEX`.",
  "classifier_losses": "The loss of `train_classifiers`: `CLASSIFIER_LOSS`.",
  "classifier_optimizers": "The optimizer of `train_classifiers`: `CLASSIFIER_OPTIMIZER`.",
  "fusion": "How `fuse` makes one score of two: `FUSION`.",
  "partitioning": "How parameters and batches lie on the devices: `PARTITIONING`. [Mesh and rules](pods.md#mesh-and-rules).",
}

HEAD: Final = """# Configuration reference

What every gin file and every macro is, for looking things up: made from the files of `configs/` by
`{again}`, so change those and not this page.

A program reads its file of [runs/](#runs) first, then (all but `train` and `plan`) the `model.gin` of a `MODEL_DIR` that was
trained, then each `--gin_file=` in the order given, then each `--gin.NAME=VALUE`: **the last one to set a name wins**. A file
is looked for in `--gin_search_paths` (the working directory) and then among the shipped ones.

- `--gin.BATCH_SIZE=64` sets the macro `BATCH_SIZE`. A value is a Python literal, `@component()`, `%MACRO`, or else a string:
  `--gin.DATA_PATH=train.tsv`. Lists and strings with quotes need the shell's: `"--gin.METRICS=('ndcg@10', 'recall@100')"`.
- `--gin.bert.BertEncoder.num_layers=3` sets a component's own parameter, also one that has no macro.
- A name that nothing reads, a macro that is missing and a value of a wrong type are errors before anything runs.
- `required` below means that there is no default. A training needs `MODEL`, `LOSS`, `TRAIN_DATA`, `MODEL_DIR` and `TRAIN_STEPS`.
- `MODEL_DIR/config.gin` has all that a training used.

[Files by kind](#files-by-kind) · [All macros](#all-macros)
"""

_MACRO = re.compile(r"^([A-Z]\w*)\s*=")
_BINDING = re.compile(r"^([a-z]\S*\.\w+)\s*=\s*([^%@\[{(\s].*)$")
_COMMANDS = ("  python ", "  bash ")
_PARAGRAPH = re.compile(r"^[A-Z][a-z]+:(?: |$)")
_INCLUDE = re.compile(r"""^\s*include\s+(['"])(.+?)\1""")


class Setting(NamedTuple):
  """A macro that a file assigns: its text, and the comment beside or above it."""

  name: str
  value: str
  comment: str


class File(NamedTuple):
  """A gin file as the page shows it. sets: bindings to plain values, as the sizes of a model."""

  name: str
  head: Sequence[str]
  includes: Sequence[str]
  settings: Sequence[Setting]
  sets: Sequence[str]


def read_file(path: pathlib.Path, name: str) -> File:
  """Returns what there is to say of a gin file.

  A macro's comment is the lines of comment right above it, but for those that begin the file, and what follows it.
  """
  lines = path.read_text(encoding="utf-8").split("\n")
  head = list(_comments(lines))
  assigned = configuration.macros_set([configuration.GinFile(path, ())], ())
  settings, sets, above = [], [], []
  for line in lines[len(head) :]:
    if line.startswith("#"):
      above.append(line.lstrip("# "))
      continue
    if match := _MACRO.match(line):
      beside = line.partition("  #")[2].strip()
      comment = " ".join([*above, *([beside] if beside else [])])
      settings.append(Setting(match[1], assigned[match[1]].value, comment))
    elif match := _BINDING.match(line):
      sets.append(f"{match[1]} = {match[2].split('  #')[0].strip()}")
    above = []
  includes = [match[2] for line in lines if (match := _INCLUDE.match(line))]
  return File(name, [line.lstrip("#").rstrip().removeprefix(" ") for line in head], includes, settings, sets)


def _comments(lines: Sequence[str]) -> Iterator[str]:
  """Yields the comment that begins a file."""
  for line in lines:
    if not line.startswith("#"):
      return
    yield line


def read_files(folder: pathlib.Path) -> list[File]:
  """Returns all gin files of a folder of configs, by kind in the page's order and then by name."""
  paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gin"))
  order = list(KINDS)
  if unknown := {name.split("/")[0] for name in paths} - KINDS.keys():
    sys.exit(f"error: KINDS in {pathlib.Path(__file__).name} says nothing of {', '.join(sorted(unknown))}/")
  paths.sort(key=lambda name: (order.index(name.split("/")[0]), name))
  return [read_file(folder / name, name) for name in paths]


def page(files: Sequence[File]) -> str:
  """Returns the page."""
  parts = [HEAD.format(again=AGAIN), "## Files by kind\n"]
  for kind, said in KINDS.items():
    found = [file for file in files if file.name.startswith(f"{kind}/")]
    if found:
      parts += [f"### {kind}\n", f"{said}\n", *map(_section, found)]
  parts += ["## All macros\n", _table(files)]
  return "\n".join(parts)


def _section(file: File) -> str:
  lines = [f"#### {file.name}", "", *_head(file.head), ""]
  if file.includes:
    lines += [f"Includes {', '.join(map(_link, file.includes))}.", ""]
  if file.sets:
    lines += [f"Sets {', '.join(f'`{text}`' for text in file.sets)}.", ""]
  for setting in file.settings:
    said = f": {_prose(setting.comment)}" if setting.comment else ""
    lines.append(f"- `{setting.name} = {_value(setting)}`{said}")
  return "\n".join([*lines, ""] if file.settings else lines)


def _head(lines: Sequence[str]) -> Iterator[str]:
  """Yields the comment that begins a file as Markdown: an indented command is code, `Word:` begins a paragraph."""
  code = continued = False
  for number, line in enumerate(lines):
    before, code = code, continued or line.startswith(_COMMANDS)
    continued = code and line.endswith("\\")
    if code != before or (number and not code and _PARAGRAPH.match(line)):
      yield ""
    yield f"    {line.strip()}" if code else _prose(line.strip())


def _table(files: Sequence[File]) -> str:
  """Returns the table of macros: those of one name, default and comment share a line."""
  found: dict[Setting, list[str]] = {}
  for file in files:
    for setting in file.settings:
      found.setdefault(setting, []).append(file.name)
  lines = ["| macro | default | set in | |", "|---|---|---|---|"]
  for setting in sorted(found, key=lambda one: (one.name, files_key(found[one], files))):
    where = ", ".join(_link(name) for name in found[setting])
    cells = (f"`{setting.name}`", f"`{_value(setting)}`", where, _prose(setting.comment))
    lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
  return "\n".join([*lines, ""])


def files_key(names: Sequence[str], files: Sequence[File]) -> int:
  """Returns the place of the first of these files on the page."""
  return [file.name for file in files].index(names[0])


def _value(setting: Setting) -> str:
  return "required" if setting.value == "%gin.REQUIRED" else setting.value


def _link(name: str) -> str:
  return f"[{name}](#{re.sub(r'[^a-z0-9_-]', '', name.lower())})"


def _prose(text: str) -> str:
  """Returns a comment as Markdown shows it: nothing in it is markup but for code between backticks."""
  parts = text.split("`")
  plain = [
    re.sub(r"([*<|\[\]])", r"\\\1", part) if number % 2 == 0 else part for number, part in enumerate(parts)
  ]
  return "`".join(plain)


def main(argv: Sequence[str] | None = None) -> None:
  """The command: writes the page, or compares it."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument(
    "--check", action="store_true", help="compare and write nothing; exit code 1 if it is stale"
  )
  flags = parser.parse_args(argv)
  text = page(read_files(ROOT / "configs"))
  if flags.check:
    if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
      sys.exit(f"{PAGE.relative_to(ROOT)} is stale: configs/ has changed. Write it anew: {AGAIN}")
    return
  with atomic_write(PAGE) as file:
    file.write(text)
  print(f"wrote {PAGE}")


if __name__ == "__main__":
  main()
