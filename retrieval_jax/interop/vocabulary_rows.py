"""Token tables with another number of rows than the file's: T5 has 32,100 entries, T5X pads its tables to 32,128."""

from typing import Final

import numpy as np
from jaxtyping import Float

from retrieval_jax.errors import UserError

MOST: Final = 10_000_000  # rows, forty times mT5's: more is a slip, which would fill the memory


def resized(table: Float[np.ndarray, "v d"], rows: int) -> Float[np.ndarray, "w d"]:
  """Returns the token table with `rows` rows: zeros added below, or the last rows cut. Of equal size: `table` itself.

  Raises: UserError for rows that are no whole number from 1 to 10,000,000.

  Example: `resized(table, 32_128)` of a table of 32,100 rows adds 28 rows of zeros.
  """
  if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
    raise UserError(
      f"vocab_size={rows!r}: expected the rows of the token table, 1 or more. Leave vocab_size out to keep the "
      f"file's {table.shape[0]:,} rows."
    )
  if rows > max(MOST, table.shape[0]):
    raise UserError(
      f"vocab_size={rows!r}: expected at most {MOST:,} rows of the token table. Leave vocab_size out to keep the "
      f"file's {table.shape[0]:,} rows."
    )
  if rows <= table.shape[0]:
    return table if rows == table.shape[0] else np.ascontiguousarray(table[:rows])
  return np.concatenate([table, np.zeros((rows - table.shape[0], table.shape[1]), table.dtype)])


def note(old: int, new: int) -> str:
  """Returns the parameter report's note on a table that went from `old` to `new` rows; "" if the same.

  Example: `note(32_100, 32_128)` is "28 rows of zeros added: 32,100 -> 32,128".
  """
  if new == old:
    return ""
  change = f"{new - old:,} rows of zeros added" if new > old else f"last {old - new:,} rows cut"
  return f"{change}: {old:,} -> {new:,}"
