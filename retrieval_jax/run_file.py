"""TREC run files: what was found for each query, in the format that every evaluation tool reads."""

import pathlib
import sys
import urllib.parse
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from retrieval_jax.paths import atomic_write
from retrieval_jax.records import Ranking


def write_run(
  path: pathlib.Path,
  ranking: Ranking,
  *,
  query_ids: Sequence[str],
  passage_ids: Sequence[str],
  depth: int,
  tag: str,
) -> None:
  """Writes a TREC run file: `query Q0 passage rank score tag`, one line a result, best first, at most `depth` a query.

  query_ids: of the ranking's queries. passage_ids: of the corpus.
  Tools that read it forget the rank, sort by score and order equal ones by id; so a score that is not below the one
  above it is written as the next float32 below that one, and their order is ours.
  The columns are split at white space: an id with white space in it, or an empty one, is written with its "%" and
  white space as %XX (`run_token`), and a warning counts such ids.

  Example: `write_run(path, ranking, query_ids=["1"], passage_ids=store.ids, depth=100, tag="dense")`.
  """
  quoted = 0
  with atomic_write(path) as file:
    for query_id, passages, scores in zip(
      query_ids, ranking.rows[:, :depth], ranking.scores[:, :depth], strict=True
    ):
      found = passages >= 0
      lowered = strictly_decreasing(scores[found])
      for rank, (passage, score) in enumerate(zip(passages[found], lowered, strict=True), start=1):
        ids = query_id, passage_ids[int(passage)]
        tokens = [run_token(identifier) for identifier in ids]
        quoted += sum(token != identifier for token, identifier in zip(tokens, ids, strict=True))
        file.write(f"{tokens[0]} Q0 {tokens[1]} {rank} {score!s} {tag}\n")
  if quoted:
    print(
      f"warning: {path}: white space in ids is written as %XX {quoted} times, since the format splits its columns at "
      "white space: quote the ids of judgements alike before another tool reads both.",
      file=sys.stderr,
    )


def run_token(identifier: str) -> str:
  """Returns the id as one column of a run file: itself, or where it holds white space or nothing, quoted.

  Example: `run_token("a b")` is `"a%20b"`, `run_token("50%")` is `"50%"` and `run_token("")` is `"%"`.
  """
  if not identifier:
    return "%"
  if not any(c.isspace() for c in identifier):
    return identifier
  return "".join(urllib.parse.quote(c) if c.isspace() or c == "%" else c for c in identifier)


def strictly_decreasing(scores: Float[np.ndarray, "k"]) -> Float[np.ndarray, "k"]:
  """Returns float32 scores, best first, each lowered as little as it takes to lie below the one before it.

  Example: `strictly_decreasing(np.array([1.0, 1.0, 0.5]))` is `[1, 0.99999994, 0.5]`.
  """
  lowered = np.array(scores, np.float32)
  for i in range(1, len(lowered)):
    lowered[i] = min(lowered[i], np.nextafter(lowered[i - 1], np.float32(-np.inf)))
  return lowered
