"""The one exception for a user's own mistake: programs print its message without a stack trace and exit with 2."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
  """Bad input: the message says what was got, what was expected and what to do next."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
  """Returns `"; did you mean 'a' or 'b'?"` for the known names nearest to `name`, or the empty string.

  Example: `nearest("LOS", ["LOSS", "MODEL"])` is `"; did you mean 'LOSS'?"`.
  """
  matches = difflib.get_close_matches(str(name), list(known), n=count, cutoff=0.55)
  if not matches:
    return ""
  return "; did you mean " + " or ".join(repr(m) for m in matches) + "?"
