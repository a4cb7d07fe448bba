"""The Task `pydocs`: find the function from what it does, over the docstrings of installed packages."""

import heapq
from collections.abc import Iterator

from retrieval_jax.data import features, pydocs


def read(split: str) -> Iterator[features.Example]:
  """Yields the pairs of a split, or all passages for "corpus"."""
  if split == features.CORPUS:
    for pair in heapq.merge(*map(pydocs.read_pairs, pydocs.SPLITS)):
      yield features.passage(pair.name, pair.passage)
    return
  for pair in pydocs.read_pairs(split):
    yield features.pair(pair.name, pair.query, pair.name, pair.passage)


features.register(
  features.TextTask(
    name="pydocs",
    splits=(*pydocs.SPLITS, features.CORPUS),
    read=read,
    fingerprint=pydocs.fingerprint,
    info=features.TaskInfo(
      template="{text}",
      source="docstrings of the installed Python, numpy, scipy, jax, optax and flax, under their licences",
    ),
  )
)
