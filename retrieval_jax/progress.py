"""How often progress bars draw themselves: often on a terminal, seldom into a log file."""

import sys

TERMINAL_SECONDS = 0.1
FILE_SECONDS = 30.0


def interval() -> float:
  """Returns tqdm's `mininterval`: a redirected log gets a line every half minute, not ten a second."""
  return TERMINAL_SECONDS if sys.stderr.isatty() else FILE_SECONDS
