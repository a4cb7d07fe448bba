"""LinkGraph: a folder with nodes and the edges between them, as a source of linked pairs, for text and for feature bags."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence

from retrieval_jax.data.features import CORPUS, Example, TaskInfo, TextTask, pair, passage
from retrieval_jax.data.file_task import FileSource, files_fingerprint, task_name
from retrieval_jax.data.graph_files import (
  Edge,
  GraphFiles,
  Node,
  graph_files,
  known_edges,
  read_edges,
  read_nodes,
)
from retrieval_jax.data.text_rows import titled
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.paths import resolve

__all__ = [
  "Edge",
  "GraphFiles",
  "LinkGraph",
  "Node",
  "graph_files",
  "graph_task",
  "known_edges",
  "read_edges",
  "read_nodes",
]

VERSION = 3  # raise it when what is read of the same files changes
INFO = TaskInfo(metrics=("map@10", *TaskInfo().metrics), drop_identical=True)


@dataclasses.dataclass(frozen=True)
class LinkGraph(FileSource):
  """A folder with a link graph: find the nodes that a node links to, from its title and text or from its features.

  The folder holds one file of nodes (nodes.jsonl or nodes.tsv) and files of edges, edges.<split>.tsv, or one file
  edges.tsv or links.tsv, which is the split "train"; names may have something and "_" before them, and .gz or .zst behind.
  Queries and passages are the same nodes, so a result that is the query's own node is no result; nor is, in any split but
  "train", a node that the query links to in another split. Memory: the nodes.

  features: None: a node's text is its title and text, for models that read text. Else the fields of a JSON object that is
  its text, for models that read feature bags: "id", "title", "text" and the names of the nodes' other features.

  Example: `load(LinkGraph("data/graph_wikispeedia", "test"), inputs)`.
  """

  path: str
  split: str = "train"
  features: Sequence[str] | None = None

  @property
  def name(self) -> str:
    """The folder's name."""
    return resolve(self.path).resolve().name

  def task(self) -> TextTask:
    """Returns the text task of the graph.

    Raises: UserError if the folder has not one file of nodes and one of edges for each split.
    """
    folder = resolve(self.path)
    files = graph_files(folder)
    return graph_task(
      task_name("link_graph", folder),
      lambda: files,
      tuple(files.edges),
      features=self.features,
      where=self.name,
    )


def graph_task(
  name: str,
  files: Callable[[], GraphFiles],
  splits: Sequence[str],
  *,
  features: Sequence[str] | None = None,
  info: TaskInfo = INFO,
  where: str | None = None,
) -> TextTask:
  """Returns the text task of a link graph's files, as LinkGraph describes it.

  splits: those of pairs. where: how a message begins; None: the name.

  Example: `graph_task("toy", lambda: graph_files(folder), ("train", "test"), features=("id", "title"))`.
  """
  fields = None if features is None else tuple(features)
  begin = name if where is None else where

  def edges(split: str) -> pathlib.Path:
    found = files().edges
    if split not in found:
      raise UserError(f"{begin}: there are no edges of {split!r}; found {', '.join(found) or 'none'}.")
    return found[split]

  def read(split: str) -> Iterator[Example]:
    if split == CORPUS:
      return _passages(files().nodes, fields, where=begin)
    return _linked_pairs(files().nodes, edges(split), fields, where=f"{begin}, split {split}")

  def everything() -> Sequence[pathlib.Path]:
    found = files()
    return [found.nodes, *found.edges.values()]

  marks = () if fields is None else (fields,)
  return TextTask(
    name=name,
    splits=(*splits, CORPUS),
    read=read,
    fingerprint=lambda: files_fingerprint(everything(), VERSION, *marks),
    info=info,
    files=everything,
    corpus_fingerprint=lambda split: files_fingerprint([files().nodes], VERSION, *marks),
    # A training that knew the links held out would not take them for negatives: it must not know them.
    filter_pairs=lambda split: iter(()) if split == "train" else other_links(files(), split),
  )


def other_links(files: GraphFiles, split: str) -> Iterator[tuple[str, str]]:
  """Yields the edges of the other splits from the nodes that have one in `split`, without those that `split` has too.

  Memory: the nodes' ids and the edges of `split`.

  Example: if train has a -> b, a -> c and b -> c, and test has a -> c, `other_links(files, "test")` is `[("a", "b")]`.
  """
  nodes = {node.id for node in read_nodes(files.nodes)}
  own: dict[str, set[str]] = {}
  for source, target in read_edges(files.edges[split], nodes):
    if source in nodes and target in nodes:
      own.setdefault(source, set()).add(target)
  for other, path in files.edges.items():
    for source, target in read_edges(path, nodes) if other != split else ():
      if source in own and target in nodes and target not in own[source]:
        yield source, target


def _passages(nodes: pathlib.Path, fields: Sequence[str] | None, *, where: str) -> Iterator[Example]:
  for node, text in _node_texts(nodes, fields, where=where):
    yield passage(node.id, text) if fields is not None else passage(node.id, node.text, title=node.title)


def _linked_pairs(
  nodes: pathlib.Path, edges: pathlib.Path, fields: Sequence[str] | None, *, where: str
) -> Iterator[Example]:
  """Yields a pair for each edge: from the source's text to the target."""
  texts = {node.id: text for node, text in _node_texts(nodes, fields, where=where)}
  for source, target in known_edges(read_edges(edges, texts), texts, where=where):
    yield pair(source, texts[source], target, "")


def _node_texts(
  nodes: pathlib.Path, fields: Sequence[str] | None, *, where: str
) -> Iterator[tuple[Node, str]]:
  """Yields each node with its text: title and text, or a JSON object of the fields that it has a value of.

  Raises: UserError for a field that no node has a value of.
  """
  if fields is None:
    yield from ((node, titled(node.title, node.text)) for node in read_nodes(nodes))
    return
  there = set[str]()
  for node in read_nodes(nodes):
    values = {**node.features, "id": node.id, "title": node.title, "text": node.text}
    found = {field: values[field] for field in fields if values.get(field)}
    there.update(name for name, value in values.items() if value)
    yield node, json.dumps(found, ensure_ascii=False)
  if missing := set(fields) - there:
    texts = ("id", "title", "text")
    name = min(missing)
    known = [*(n for n in texts if n in there), *sorted(there.difference(texts))]
    raise UserError(
      f"{where}: no node of {nodes} has a value of {name!r}; nodes have {', '.join(known) or 'none'}{nearest(name, known) or '.'} "
      "Name the fields to read, such as --gin.BAG_FEATURES=\"{'id': ('values', 'id'), 'ngrams': ('ngrams', 'title', 'text')}\"."
    )
