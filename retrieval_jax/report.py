"""The report of a run as one HTML file that needs no network. `python -m retrieval_jax.report MODEL_DIR`."""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from retrieval_jax.errors import UserError
from retrieval_jax.exit_codes import BAD_INPUT, INTERRUPTED
from retrieval_jax.paths import atomic_write, output_file

NAME = "report.html"


def report(model_dir: str, *, compare: Sequence[str] = (), output: str | None = None) -> pathlib.Path:
  """Writes the report of a run and returns its file; reads MODEL_DIR's small files and no checkpoint, data or model.

  compare: MODEL_DIRs of other runs. output: the file; None: MODEL_DIR/report.html. It is written whole or not at all.

  Raises: UserError for a folder without anything of a run, a broken file in it, a file that cannot be written, and if matplotlib
    is not installed.

  Cost: 2 to 4 s of one core, of which t-SNE takes 1 s a task; with `compare` 0.5 s more a metric for every 1,000 queries.

  Example: `report("/tmp/run", compare=["/tmp/other"])`.
  """
  from retrieval_jax.reporting.page import page
  from retrieval_jax.reporting.run_folder import read_run

  paths = [model_dir, *compare]
  names = _names(paths)
  runs = [read_run(path, name=name) for path, name in zip(paths, names, strict=True)]
  file = output_file(runs[0].folder / NAME if output is None else output, "--output")
  text = page(runs[0], runs[1:])
  with atomic_write(file) as writing:
    writing.write(text)
  return file


def _names(paths: Sequence[str]) -> list[str]:
  """Returns a name for each run: its folder's, with as many of the folders above it as tell the runs apart."""
  parts = [pathlib.Path(path).expanduser().resolve().parts for path in paths]
  for depth in range(1, max(map(len, parts)) + 1):
    names = ["/".join(own[-depth:]) for own in parts]
    if len(set(names)) == len(names):
      return names
  raise UserError(f"--compare: one run comes twice among {', '.join(paths)}. Name each once.")


def main(argv: Sequence[str] | None = None) -> None:
  """The command: parses flags; a UserError becomes one message and exit code 2."""
  flags = _flags(sys.argv[1:] if argv is None else argv)
  try:
    file = report(flags.model_dir, compare=flags.compare, output=flags.output)
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(BAD_INPUT)
  print(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB); open it in a browser")


def _flags(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="python -m retrieval_jax.report",
    description=(__doc__ or "").split("`")[0].strip(),
    epilog="example: python -m retrieval_jax.report /tmp/run --compare /tmp/other --output report.html",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    "model_dir",
    metavar="MODEL_DIR",
    help="of a training or an evaluation, or a copy of it without checkpoints",
  )
  add("--compare", nargs="+", default=[], metavar="OTHER_MODEL_DIR", help="other runs to set beside this one")
  add("--output", metavar="FILE", help=f"what is written (default: MODEL_DIR/{NAME})")
  return parser.parse_args(argv)


if __name__ == "__main__":
  main()
