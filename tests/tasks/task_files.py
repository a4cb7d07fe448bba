"""Files that tests of tasks write, and what of the loaded data they look at."""

import json
import pathlib

from retrieval_jax.data.dataset import RetrievalData


def write(path: pathlib.Path, *lines: object) -> pathlib.Path:
  """Writes lines of text, or of JSON."""
  path.parent.mkdir(parents=True, exist_ok=True)
  texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
  path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
  return path


def judgements(data: RetrievalData) -> dict[str, dict[str, int]]:
  """Returns {query id: {passage id: grade}} of the judged queries; a passage that the corpus lacks is "lost"."""
  found = {}
  for row in data.judged:
    passages, grades = data.judgements(int(row))
    ids = [data.passages.ids[int(p)] if p < data.passages.num_rows else "lost" for p in passages]
    found[data.queries.ids[int(row)]] = dict(zip(ids, map(int, grades), strict=True))
  return found
