"""BuiltGraph: what sources have in common that build a folder with a link graph in the cache and read it as LinkGraph does."""

import pathlib
from collections.abc import Callable

from retrieval_jax.data import features
from retrieval_jax.data.file_task import FileSource
from retrieval_jax.data.link_graph import LinkGraph


class BuiltGraph(FileSource):
  """A source whose folder is made when it is first asked for; a subclass has name, split, graph and `folder`.

  graph: makes the reader of the folder, from `path` and `split`; what it is bound to besides, such as features, holds.
  """

  split: str
  graph: Callable[..., LinkGraph]

  def folder(self) -> pathlib.Path:
    """Returns the folder with the graph, which is made at the first call."""
    raise NotImplementedError

  def task(self) -> features.TextTask:
    """Returns the text task of the graph.

    Raises: UserError if the graph cannot be made or read.
    """
    return self.graph(path=str(self.folder()), split=self.split).task()
