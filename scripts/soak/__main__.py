"""The soak: real trainings, killed, stopped, starved of room and damaged at random moments, and what has to hold after each.

Every training is a process of `python -m retrieval_jax.train` that is started again by the same command after each fault,
until it reaches its end; then all it holds must equal, bit for bit, what an undisturbed training holds. The exit status is
0 only if every line of the table at the end holds.

  bash scripts/soak.sh            under 30 minutes on two cores
  bash scripts/soak.sh --quick    two minutes: each kind of fault, fewer times
"""

import argparse
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from scripts.soak import deaths, faults, pairs
from scripts.soak.tally import Row, say, table
from scripts.soak.trainings import TRAININGS, Workshop


def main() -> int:
  flags = _flags()
  seed = flags.seed if flags.seed is not None else random.SystemRandom().randrange(2**32)
  folder = pathlib.Path(flags.dir or tempfile.mkdtemp(prefix="soak_")).absolute()
  if flags.dir and folder.exists() and any(folder.iterdir()):
    print(f"error: --dir {flags.dir} is not empty. Name a new folder.", file=sys.stderr)
    return 2
  say(f"in {folder}, --seed {seed}")
  workshop, begun, rows = Workshop(folder), time.monotonic(), []
  try:
    for line in _lines(workshop, seed, quick=flags.quick):
      try:
        row = line()
      except (AssertionError, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        row = Row("a line that broke off", 1, (f"{type(error).__name__}: {error}",))
      rows.append(row)
      say(table([row]).splitlines()[1])
  finally:
    workshop.end()
  holds = all(row.holds for row in rows)
  print(table(rows))
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  minutes, cpu = (time.monotonic() - begun) / 60, (used.ru_utime + used.ru_stime) / 60
  verdict = "all lines hold" if holds else "NOT ALL LINES HOLD"
  print(f"{verdict}: {minutes:.1f} minutes, {cpu:.1f} of CPU, --seed {seed}", flush=True)
  if holds and not flags.dir:
    shutil.rmtree(folder)
  else:
    say(f"everything is in {folder}")
  return 0 if holds else 1


def _lines(workshop: Workshop, seed: int, *, quick: bool) -> list[Callable[[], Row]]:
  """Returns the rows of the tally to be: each call does its faults."""
  trainings = TRAININGS[1:2] if quick else TRAININGS
  names = [f"training_{number}" for number in range(len(trainings))]
  references = [
    deaths.Reference(workshop, training, name) for training, name in zip(trainings, names, strict=True)
  ]
  kills = [3] if quick else [10, 10, 10]
  stops = [1] if quick else [4, 3, 3]
  few = references[:1] if quick else references[:2]

  def random_of(line: str) -> random.Random:
    return random.Random(f"{seed} {line}")  # a line's moments do not depend on the lines before it

  return [
    *(
      lambda r=r, n=n, c=c: deaths.kills(workshop, r, n, c, random_of(f"kill {n}"))
      for r, n, c in zip(references, names, kills, strict=True)
    ),
    *(
      lambda r=r, n=n, c=c: deaths.stops(workshop, r, n, c, random_of(f"stop {n}"))
      for r, n, c in zip(references, names, stops, strict=True)
    ),
    lambda: faults.full_disk(workshop, few, random_of("full disk")),
    lambda: faults.damaged(workshop, references, quick=quick),
    lambda: faults.no_cache(workshop, few, random_of("no cache")),
    lambda: faults.two_trainings(workshop, few[:1]),
    lambda: pairs.faults(workshop, random_of("pairs"), quick=quick),
  ]


def _flags() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="scripts/soak.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--quick", action="store_true", help="two minutes: each kind of fault, fewer times")
  parser.add_argument("--seed", type=int, help="of the random moments (default: another each time, printed)")
  parser.add_argument("--dir", help="a new folder to work in, which is kept (default: a temporary one)")
  return parser.parse_args()


if __name__ == "__main__":
  sys.exit(main())
