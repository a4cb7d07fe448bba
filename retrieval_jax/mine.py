"""The mining program: a searcher's hard negatives of a training split. `python -m retrieval_jax.mine --gin_file=...`."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError
from retrieval_jax.mined_file import check_ids, output_file, record_path, write_mined
from retrieval_jax.mining import DEFAULTS, MinedNegatives, mine_negatives
from retrieval_jax.mining_options import MiningOptions
from retrieval_jax.searchers import Searcher

REASONS = {
  "positive": "known positives and copies of them",
  "filtered": "that the task filters",
  "identical": "the query itself",
  "equal_text": "copies of a passage found before",
  "max_score": "above MAX_SCORE",
  "min_score": "below MIN_SCORE",
  "absolute_margin": "within ABSOLUTE_MARGIN of a positive",
  "relative_margin": "within RELATIVE_MARGIN of a positive",
}


def mine(
  searcher: Searcher,
  data: RetrievalData,
  *,
  output_path: str,
  options: MiningOptions = DEFAULTS,
  overwrite: bool = False,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> MinedNegatives:
  """Mines hard negatives of every query of the split and writes them; prints how many, and what was left out.

  The file (TSV: query_id, passage_id, rank, score; compressed where its name ends in .gz) is what a training takes as
  HARD_NEGATIVES_PATH. OUTPUT_PATH.json beside it has the options, the checkpoint, the data's fingerprint and the counts.
  on_start is ignored: the JSON is the record.

  Raises: UserError for options that cannot be, a file that is there already unless `overwrite`, an id that TSV cannot
  hold, and if nothing is left to mine; then nothing is written.
  """
  del on_start
  options.check()
  path = output_file(output_path, overwrite=overwrite)
  check_ids(data)
  mined = mine_negatives(searcher, data, options)
  if jax.process_index() != 0:
    return mined
  if not len(mined.ranks):
    raise UserError(
      f"{searcher.name} found no hard negative for any of {data.num_examples} queries; left out were {_reasons(mined)}. "
      "Raise LAST_RANK, or loosen the margins and bounds of the score."
    )
  write_mined(path, mined, data, _record(searcher, data, options, mined))
  _print(searcher, data, options, mined, path)
  return mined


def _record(
  searcher: Searcher, data: RetrievalData, options: MiningOptions, mined: MinedNegatives
) -> Mapping[str, Any]:
  """Returns all that one must know to mine the same again, and the counts."""
  return {
    "searcher": searcher.name,
    "checkpoint": searcher.checkpoint,
    "step": searcher.step,
    "task": data.name,
    "split": data.split,
    "task_fingerprint": data.fingerprint,
    "task_files": data.files,
    "options": options._asdict(),
    "queries": data.num_examples,
    "queries_with_fewer": int(np.count_nonzero(mined.per_query < options.per_query)),
    "queries_with_none": int(np.count_nonzero(mined.per_query == 0)),
    "negatives": len(mined.ranks),
    "left_out": mined.left_out,
  }


def _print(
  searcher: Searcher, data: RetrievalData, options: MiningOptions, mined: MinedNegatives, path: pathlib.Path
) -> None:
  fewer = np.count_nonzero(mined.per_query < options.per_query)
  print(
    f"{searcher.name} {searcher.checkpoint}\n"
    f"{data.name}/{data.split}: {len(mined.ranks):,} hard negatives of {data.num_examples:,} queries, "
    f"{mined.per_query.mean():.2f} a query\n"
    f"{fewer:,} queries have fewer than {options.per_query}, {np.count_nonzero(mined.per_query == 0):,} of them none\n"
    f"left out: {_reasons(mined)}\n"
    f"wrote {path} and {record_path(path).name}; train with them: --gin.HARD_NEGATIVES_PATH={path} "
    f"--gin.HARD_NEGATIVES={options.per_query}",
    flush=True,
  )


def _reasons(mined: MinedNegatives) -> str:
  """Returns what was left out and how often, in words."""
  found = [f"{count:,} {REASONS[rule]}" for rule, count in mined.left_out.items() if count]
  return ", ".join(found) or "nothing"


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("mine")
