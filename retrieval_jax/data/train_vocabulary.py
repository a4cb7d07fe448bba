"""Trains a SentencePiece vocabulary on a task's own text: the offline way to a T5 without its published vocabulary.

python -m retrieval_jax.data.train_vocabulary --task=pydocs --vocab_size=8000 --output=vocabulary.model
"""

import argparse
import pathlib
import sys
from collections.abc import Iterator

from retrieval_jax import paths
from retrieval_jax.data.file_sources import TsvPairs
from retrieval_jax.data.pair_table import pair_table
from retrieval_jax.data.task_source import Source, TaskSource
from retrieval_jax.data.text_rows import TextRows
from retrieval_jax.data.vocabularies import train_sentencepiece
from retrieval_jax.errors import UserError


def train_vocabulary(
  source: Source, output: str, *, vocab_size: int, cache: pathlib.Path | None = None
) -> None:
  """Trains on the queries and passages of the source's split and writes the model file `output`, whole or not.

  Memory: all texts of the split at once.

  Raises: UserError for an unknown task or split, or a vocab_size that the text cannot fill.

  Example: `train_vocabulary(TaskSource("pydocs"), "vocabulary.model", vocab_size=8000)`.
  """
  table = pair_table(source, cache or paths.cache_dir())

  def texts() -> Iterator[str]:
    for folder in (table.queries, table.passages):
      yield from TextRows(folder).texts

  train_sentencepiece(texts(), output, vocab_size=vocab_size)


def main() -> None:
  """The command: parses flags, prints one line or one error."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  data = parser.add_mutually_exclusive_group(required=True)
  data.add_argument("--task", help="a seqio Task, for example pydocs")
  data.add_argument("--tsv", help="a file of query<TAB>passage lines")
  parser.add_argument("--output", required=True, help="the model file to write")
  parser.add_argument("--vocab_size", type=int, default=8000)
  flags = parser.parse_args()
  source = TaskSource(flags.task) if flags.task else TsvPairs(flags.tsv)
  try:
    train_vocabulary(source, flags.output, vocab_size=flags.vocab_size)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
  print(f"wrote {flags.output}: {flags.vocab_size} pieces. Use it with --gin.VOCABULARY_PATH={flags.output}")


if __name__ == "__main__":
  main()
