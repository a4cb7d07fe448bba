"""Makes a data set of extreme classification out of plain texts, or looks at one and counts what is in it.

`convert` writes the LF layout (lbl.json.gz, trn.json.gz, trn_X_Y.txt, tst.*, filter files) from texts of points and labels
and pairs of their ids. Texts: a line each, whose ids are the lines' numbers from 0; or TSV of id, text and perhaps title; or
JSON lines (.jsonl) with id, text and perhaps title. Pairs: TSV of point id and label id. A name that says "title" makes the
data one of titles alone: it is how the readers of this layout tell.

`validate` reads a folder as training would and prints sizes, empty points, the share of the tail, self and reciprocal pairs,
equal texts, and the bytes that the data need. Exit status: 0, or 2 after a message that names file and line.

  python scripts/prepare_extreme.py convert data/mine_titles --points points.tsv --labels labels.tsv --pairs pairs.tsv \\
    --test_share 0.1 --self_pairs text
  python scripts/prepare_extreme.py validate data/mine_titles
  python -m retrieval_jax.train --gin_file=data/extreme.gin --gin.DATA_PATH=data/mine_titles ...
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from retrieval_jax.errors import UserError

UNITS = ("B", "kB", "MB", "GB", "TB")


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line, does what it says and returns the exit status."""
  logging.basicConfig(level=logging.WARNING, format="%(message)s")
  options = _parser().parse_args(argv)
  try:
    options.action(options)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except OSError as error:
    print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("stopped; nothing was written", file=sys.stderr)
    return 130
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  actions = parser.add_subparsers(required=True, metavar="convert | validate")
  convert = actions.add_parser("convert", help="write a folder in the LF layout")
  convert.add_argument("output", help="the folder; it must not be there, or be empty")
  convert.add_argument("--points", required=True, metavar="FILE", help="texts of the points")
  convert.add_argument("--labels", required=True, metavar="FILE", help="texts of the labels")
  convert.add_argument("--pairs", required=True, metavar="FILE", help="point id, label id")
  convert.add_argument("--test_points", metavar="FILE", help="texts of the test points")
  convert.add_argument("--test_pairs", metavar="FILE", help="their pairs; without it --pairs has them too")
  convert.add_argument("--test_share", type=float, default=0.0, help="the share of --points that is test; points of one "
                       "text are on one side")  # fmt: skip
  convert.add_argument("--seed", type=int, default=0, help="of that draw")
  convert.add_argument("--self_pairs", choices=("none", "id", "text"), default="none", help="write filter files of each "
                       "point and the label with its id or text: no result of it")  # fmt: skip
  convert.set_defaults(action=_convert)
  validate = actions.add_parser("validate", help="count what is in a folder in the LF layout")
  validate.add_argument("folder")
  text = validate.add_mutually_exclusive_group()
  text.add_argument("--titles_only", dest="titles_only", action="store_true", default=None, help="texts are titles; "
                    "without a flag: if the folder's name says \"title\"")  # fmt: skip
  text.add_argument(
    "--contents", dest="titles_only", action="store_false", help="texts are title and content"
  )
  validate.add_argument("--encoding", default="utf-8", help="of the files; older releases are latin-1")
  validate.add_argument("--keep_entities", action="store_true", help='leave "&amp;" as it is')
  validate.add_argument("--dim", type=int, default=768, help="of the embeddings whose bytes are said")
  validate.add_argument("--length", type=int, default=32, help="tokens of a text whose bytes are said")
  validate.add_argument("--json", metavar="FILE", help="write the numbers there too")
  validate.set_defaults(action=_validate)
  return parser


def _convert(options: argparse.Namespace) -> None:
  from retrieval_jax.data.extreme_conversion import TextFiles, convert

  found = convert(
    TextFiles(options.points, options.labels, options.pairs, options.test_points, options.test_pairs),
    options.output,
    test_share=options.test_share,
    seed=options.seed,
    self_pairs=options.self_pairs,
  )
  print(
    f"{options.output}: {_number(found.train, 'training point')}, {_number(found.test, 'test point')}, "
    f"{_number(found.labels, 'label')}, {_number(found.pairs, 'pair')}, {_number(found.filtered, 'filter pair')}."
  )
  if found.repeated:
    verb = "is" if found.repeated == 1 else "are"
    print(f"{_number(found.repeated, 'pair')} came again and {verb} left out.")
  if options.test_share and not found.test:
    print(
      f"warning: --test_share {options.test_share} of {_number(found.train, 'point')} is no test point, so there is no test "
      "split. Give a larger share or another --seed, or --test_points.",
      file=sys.stderr,
    )


def _number(count: int, what: str) -> str:
  return f"{count:,} {what}" + "s" * (count != 1)


def _validate(options: argparse.Namespace) -> None:
  from retrieval_jax.data.extreme import is_titles
  from retrieval_jax.data.extreme_files import extreme_files
  from retrieval_jax.data.extreme_report import extreme_report, memory_needed
  from retrieval_jax.data.extreme_rows import TextRule, check_encoding
  from retrieval_jax.paths import atomic_write, output_file, resolve

  check_encoding(options.encoding)
  for name in ("dim", "length"):
    if getattr(options, name) < 1:
      raise UserError(f"--{name} {getattr(options, name)}: expected a whole number of at least 1.")
  written = options.json and output_file(options.json, "--json")
  name = resolve(options.folder).resolve().name
  titles_only = is_titles(name) if options.titles_only is None else options.titles_only
  report = extreme_report(
    extreme_files(options.folder), TextRule(titles_only, options.encoding, not options.keep_entities)
  )
  print(f"{options.folder}: texts are {'titles alone' if titles_only else 'titles and contents'}.")
  for section, numbers in report.items():
    print(f"\n{section}")
    for what, number in numbers.items():
      print(f"  {what}: {number:,}" if isinstance(number, int) else f"  {what}: {number:.4g}")
  print(f"\nbytes with {options.dim} dimensions and {options.length} tokens a text")
  needed = memory_needed(report, dim=options.dim, length=options.length)
  for what, number in needed.items():
    print(f"  {what}: {_bytes(number)}")
  if written:
    with atomic_write(written) as file:
      json.dump(report | {"bytes": needed}, file, indent=2)
      file.write("\n")


def _bytes(number: float) -> str:
  place = 0
  while number >= 1000 and place < len(UNITS) - 1:
    number, place = number / 1000, place + 1
  return f"{number:.3g} {UNITS[place]}"


if __name__ == "__main__":
  sys.exit(main())
