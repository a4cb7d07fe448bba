"""The files of a link graph: nodes with texts and features, edges between them by splits, each plain, .gz or .zst."""

import logging
import pathlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval_jax.data.lines import Path, json_lines, read_lines
from retrieval_jax.data.row_ids import consistent
from retrieval_jax.data.tables import is_json
from retrieval_jax.errors import UserError

TITLES, TEXTS = ("title", "name"), ("text", "description", "short description")  # the first that is there
MOST_MISSING = 0.01  # beyond this share of dangling edges the nodes are of another version than they
NODE_FILE = re.compile(r"(?:.*_)?nodes\.(?:jsonl|tsv)(?:\.gz|\.zst)?")
EDGE_FILE = re.compile(r"(?:.*_)?(?:edges|links)(?:\.([^.]+))?\.tsv(?:\.gz|\.zst)?")
LOG = logging.getLogger(__name__)


class Node(NamedTuple):
  """A node: its title and text ("" for none), and the values of its other features by their names."""

  id: str
  title: str
  text: str
  features: Mapping[str, list[str]]


class Edge(NamedTuple):
  """A link from one node to another, by their ids."""

  source: str
  target: str


def read_nodes(path: Path) -> Iterator[Node]:
  """Yields the nodes of a file in its order: JSON lines if its name says so, else TSV with a header.

  A node has an "id" (text, or a whole number in JSON), perhaps a "title" or "name", and perhaps a "text", "description"
  or "short description"; whatever else it has is a feature: a text or a list of texts in JSON, words in TSV. A TSV
  file's header names the columns, "# " before it or not. Memory: 16 bytes a node.

  Raises: UserError with file and line number for a line of another form and for an id with two contents.

  Example: the line {"id": 0, "title": "Cats", "text": "They purr.", "categories": ["Animals"]}.
  """
  rows = _json_rows if is_json(path) else _tsv_rows

  def nodes() -> Iterator[tuple[Node, str]]:
    return ((_node(row, where), where) for row, where in rows(path))

  return consistent(nodes, lambda node: (node.id, (node.title, node.text, repr(node.features))))


def _json_rows(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
  return json_lines(path, ())


def _tsv_rows(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
  header: list[str] | None = None
  for line in read_lines(path):
    values = line.text.split("\t")
    if header is None:
      header = [values[0].removeprefix("#").lstrip(" "), *values[1:]]
      if "id" not in header or len(set(header)) != len(header):
        raise UserError(
          f"{line.where}: the first line {values!r:.200} must name the columns, id among them, each once."
        )
      continue
    if len(values) != len(header):
      raise UserError(
        f"{line.where}: {len(values)} columns, expected {len(header)}: {', '.join(header)}. One node a line."
      )
    texts = {*TITLES, *TEXTS, "id"}
    yield (
      {n: v if n in texts else [w for w in v.split(" ") if w] for n, v in zip(header, values, strict=True)},
      line.where,
    )


def _node(row: Mapping[str, Any], where: str) -> Node:
  id = row.get("id")
  if not isinstance(id, str | int) or isinstance(id, bool):
    raise UserError(f"{where}: id is {id!r:.80}; expected text or a whole number as the node's id.")
  names = {
    kind: next((name for name in known if name in row), "")
    for kind, known in (("title", TITLES), ("text", TEXTS))
  }
  found = {kind: row.get(name) for kind, name in names.items()}
  for kind, value in found.items():
    if not isinstance(value, str | None):
      raise UserError(f"{where}: {names[kind]} is {value!r:.80}; expected text.")
  used = {"id", *names.values()}
  others = {name: _values(name, value, where) for name, value in row.items() if name not in used}
  return Node(str(id), (found["title"] or "").strip(), (found["text"] or "").strip(), others)


def _values(name: str, value: Any, where: str) -> list[str]:
  values = value if isinstance(value, list) else [] if value is None else [value]
  if any(not isinstance(item, str | int | float) or isinstance(item, bool) for item in values):
    raise UserError(f"{where}: {name} is {value!r:.80}; expected text, a number or a list of those.")
  return [str(item) for item in values]


def read_edges(path: Path, nodes: Container[str] = ()) -> Iterator[Edge]:
  """Yields the edges of a TSV file (source id, target id) in its order.

  A first line that begins with "#" is a header, unless it is two of the ids in `nodes`. Costs no memory.

  Raises: UserError with file and line number for a line that has not 2 columns.

  Example: the line "0\\t530" is `Edge("0", "530")`.
  """
  first = True
  for line in read_lines(path):
    values = line.text.split("\t")
    is_header = first and line.text.startswith("#") and not _are_nodes(values, nodes)
    first = False
    if is_header:
      continue
    if len(values) != 2:
      raise UserError(
        f"{line.where}: {len(values)} columns, expected 2 split by a tab: source id, target id."
      )
    yield Edge(*values)


def _are_nodes(values: Sequence[str], nodes: Container[str]) -> bool:
  return len(values) == 2 and all(value in nodes for value in values)


def known_edges(edges: Iterable[Edge], nodes: Container[str], *, where: str) -> Iterator[Edge]:
  """Yields the edges between nodes that are there; a warning, which begins with `where`, counts the others.

  Raises: UserError if more than 1% of the edges are dangling.

  Example: `list(known_edges([Edge("0", "1")], {"0", "1"}, where="train"))`.
  """
  total, dangling = 0, []
  for edge in edges:
    total += 1
    if edge.source in nodes and edge.target in nodes:
      yield edge
    else:
      dangling.append(edge)
  if dangling:
    shown = ", ".join(f"{edge.source!r} -> {edge.target!r}" for edge in dangling[:3])
    message = f"{where}: {len(dangling)} of {total} edges name nodes that are not there ({shown})"
    if len(dangling) > MOST_MISSING * total:
      raise UserError(f"{message}. Above 1% the nodes are of another version: get the files of one release.")
    LOG.warning("%s: they are left out.", message)


class GraphFiles(NamedTuple):
  """The file of nodes, and the files of edges by their splits."""

  nodes: pathlib.Path
  edges: Mapping[str, pathlib.Path]


def graph_files(folder: pathlib.Path) -> GraphFiles:
  """Returns the file of nodes in a folder, and the files of edges by their splits.

  Raises: UserError if there is not one file of nodes, and one of edges for each split.
  """
  names = sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []
  nodes = [file for file in names if NODE_FILE.fullmatch(file.name)]
  edges: dict[str, pathlib.Path] = {}
  for file in names:
    if match := EDGE_FILE.fullmatch(file.name):
      split = match[1] or "train"
      if split in edges:
        raise UserError(
          f"{folder}: both {edges[split].name} and {file.name} are edges of the split {split!r}. Keep one."
        )
      edges[split] = file
  if len(nodes) != 1 or not edges:
    raise UserError(
      f"{folder}: expected one file nodes.jsonl or nodes.tsv and files edges.<split>.tsv (each perhaps with .gz or .zst); "
      f"found {len(nodes)} files of nodes and {len(edges)} of edges."
    )
  return GraphFiles(nodes[0], edges)
