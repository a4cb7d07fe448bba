"""The files that mining writes: negatives as a side file of the training data, and beside it how they were mined."""

import contextlib
import gzip
import io
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError
from retrieval_jax.mining import MinedNegatives
from retrieval_jax.paths import atomic_write, output_dir

COLUMNS = ("query_id", "passage_id", "rank", "score")
CHUNK = 2**14  # lines made at once


def output_file(path: str, *, overwrite: bool) -> pathlib.Path:
  """Returns the absolute path of the file to write.

  Raises: UserError if it is no name of a TSV file, something lies there already, or its folder cannot be written.
  """
  if not isinstance(path, str) or not path.endswith((".tsv", ".tsv.gz")):
    raise UserError(
      f"OUTPUT_PATH={path!r}: expected the name of a file, ending with .tsv or, to be compressed, .tsv.gz."
    )
  target = pathlib.Path(path).expanduser().absolute()
  output_dir(str(target.parent), "OUTPUT_PATH")
  if target.is_dir():
    raise UserError(f"OUTPUT_PATH={path}: that is a folder; expected the name of a file.")
  if target.exists() and not overwrite:
    raise UserError(
      f"OUTPUT_PATH={path}: there is such a file already. Name another, or add --gin.OVERWRITE=True to replace it."
    )
  return target


def record_path(path: pathlib.Path) -> pathlib.Path:
  """Returns where the record of a file of mined negatives lies: its name with .json behind it."""
  return path.with_name(f"{path.name}.json")


def check_ids(data: RetrievalData) -> None:
  """Raises UserError for an id that a TSV file cannot hold; reads all of them."""
  for side, ids in (("query", data.queries.ids), ("passage", data.passages.ids)):
    bad = next((id for id in ids if "\t" in id or "\n" in id), None)
    if bad is not None:
      raise UserError(
        f"{data.name}: the {side} id {bad!r} has a tab or a line end in it, which a TSV file of negatives cannot hold. "
        "Give it another id."
      )


def write_mined(
  path: pathlib.Path, mined: MinedNegatives, data: RetrievalData, record: Mapping[str, Any]
) -> None:
  """Writes the negatives, one a line under a header, and then the record as JSON beside them; each appears whole.

  A name that ends in .gz is compressed, the same bytes for the same negatives. The record of an earlier file is removed
  first, so that none stands beside negatives of another mining.
  """
  record_path(path).unlink(missing_ok=True)
  with atomic_write(path, "wb") as file, _text(file, compressed=path.suffix == ".gz") as text:
    text.write("\t".join(COLUMNS) + "\n")
    text.writelines(_lines(mined, data))
  with atomic_write(record_path(path)) as file:
    json.dump({**record, "bytes": path.stat().st_size}, file, indent=2, ensure_ascii=False)
    file.write("\n")


def _lines(mined: MinedNegatives, data: RetrievalData) -> Iterable[str]:
  for start in range(0, len(mined.ranks), CHUNK):
    span = slice(start, start + CHUNK)
    columns = (
      data.queries.ids.take(mined.query_rows[span]),
      data.passages.ids.take(mined.passage_rows[span]),
      mined.ranks[span],
      mined.scores[span],
    )
    yield from (
      f"{query}\t{passage}\t{rank}\t{score!s}\n" for query, passage, rank, score in zip(*columns, strict=True)
    )


@contextlib.contextmanager
def _text(file: IO[bytes], *, compressed: bool) -> Iterator[IO[str]]:
  """Yields a writer of UTF-8 text into a file of bytes, which stays open."""
  with contextlib.ExitStack() as stack:
    inner: Any = file
    if compressed:  # without a name and a time of its own
      inner = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
    text = io.TextIOWrapper(inner, encoding="utf-8", newline="\n")
    yield text
    text.detach()
