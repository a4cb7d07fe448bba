"""Link graphs: nodes of both forms, edges, dangling ones, the source."""

import json
import logging
import pathlib

import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import load
from retrieval_jax.data.link_graph import Edge, LinkGraph, Node, known_edges, read_edges, read_nodes
from retrieval_jax.data.split_graph import Shares, write_split
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError


def write(path: pathlib.Path, *lines: str) -> pathlib.Path:
  path.write_bytes("".join(f"{line}\n" for line in lines).encode())
  return path


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  root = tmp_path / "toy graph"
  root.mkdir()
  nodes = [
    {"id": 0, "name": "R", "title": "red", "text": "a\u2028b", "categories": ["x", "y z"], "year": 2007},
    {"id": "00", "title": None, "text": "green"},
    {"id": 1, "name": "blue"},
  ]
  write(root / "nodes.jsonl", *(json.dumps(node, ensure_ascii=False) for node in nodes))
  write(root / "edges.train.tsv", "# source\ttarget", "0\t1", "0\t00", "1\t0")
  write(root / "edges.test.tsv", "00\t0")
  write(root / "README.tsv", "not read")
  return root


def test_nodes_of_json_lines(folder: pathlib.Path):
  assert list(read_nodes(folder / "nodes.jsonl")) == [
    Node("0", "red", "a\u2028b", {"name": ["R"], "categories": ["x", "y z"], "year": ["2007"]}),
    Node("00", "", "green", {}),
    Node("1", "blue", "", {}),
  ]


@pytest.mark.parametrize("mark", ["# ", "#", ""])
def test_nodes_of_a_table(tmp_path: pathlib.Path, mark: str):
  path = write(
    tmp_path / "nodes.tsv",
    f"{mark}id\tname\ttags\tshort description",
    "#0\t0ad\tgame::a  b\u2028c\tA game",
    "1\t\t\t",
  )
  assert list(read_nodes(path)) == [
    Node("#0", "0ad", "A game", {"tags": ["game::a", "b\u2028c"]}),
    Node("1", "", "", {"tags": []}),
  ]


def test_edges(folder: pathlib.Path):
  assert list(read_edges(folder / "edges.train.tsv")) == [Edge("0", "1"), Edge("0", "00"), Edge("1", "0")]


def test_source(folder: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path):
  graph = LinkGraph(str(folder))
  assert list(graph.splits()) == ["test", "train", "corpus"]
  assert list(graph.examples("train")) == [
    features.pair("0", "red a\u2028b", "1", ""),
    features.pair("0", "red a\u2028b", "00", ""),
    features.pair("1", "blue", "0", ""),
  ]
  data = load(graph, inputs, cache=tmp_path / "cache")
  assert list(data.passages.texts) == ["red a\u2028b", "green", "blue"]
  assert data.relevance.row(0)[0].tolist() == [1, 2]
  assert graph.info.drop_identical
  assert graph.info.metrics[0] == "map@10"
  assert [file.name for file in graph.files()] == ["nodes.jsonl", "edges.test.tsv", "edges.train.tsv"]


def test_features_as_json(folder: pathlib.Path, tmp_path: pathlib.Path):
  graph = LinkGraph(str(folder), features=["id", "title", "categories", "year"])
  first = '{"id": "0", "title": "red", "categories": ["x", "y z"], "year": ["2007"]}'
  assert list(graph.examples("corpus")) == [
    features.passage("0", first),
    features.passage("00", '{"id": "00"}'),
    features.passage("1", '{"id": "1", "title": "blue"}'),
  ]
  assert list(graph.examples("train"))[:2] == [
    features.pair("0", first, "1", ""),
    features.pair("0", first, "00", ""),
  ]
  text = LinkGraph(str(folder))
  assert graph.fingerprint() != text.fingerprint()
  assert graph.corpus_fingerprint("corpus") != text.corpus_fingerprint("corpus")
  before = text.fingerprint(), text.corpus_fingerprint("corpus")
  write(folder / "edges.test.tsv", "00\t0", "00\t1")
  assert text.fingerprint() != before[0]
  assert text.corpus_fingerprint("corpus") == before[1]


def test_fields_that_no_node_has(folder: pathlib.Path):
  graph = LinkGraph(str(folder), features=("id", "categorys"))
  message = r"toy graph: no node of .*nodes\.jsonl has a value of 'categorys'; nodes have id, title, text, categories, name"
  with pytest.raises(UserError, match=message + r", year; did you mean 'categories'"):
    list(graph.examples("corpus"))


def test_a_field_that_is_empty_everywhere_is_no_hint(tmp_path: pathlib.Path):
  write(tmp_path / "nodes.tsv", "id\ttitle\ttags\ttitles", "a\t\t\tx", "b\t\t\t")
  write(tmp_path / "edges.tsv", "a\tb")
  for field, hint in (("title", "; did you mean 'titles'\\? Name"), ("tags", r"\. Name")):
    with pytest.raises(UserError, match=rf"has a value of '{field}'; nodes have id, titles{hint}"):
      list(LinkGraph(str(tmp_path), features=("id", field)).examples("corpus"))


def test_ids_that_begin_like_a_header(folder: pathlib.Path):
  nodes = ("#1", "# 2", "#source", "target")
  write(folder / "nodes.jsonl", *(json.dumps({"id": id, "title": id}) for id in nodes))
  path = folder / "edges.train.tsv"
  pairs = [("#1", "# 2"), ("# 2", "#1"), ("#source", "target"), ("target", "#1")]
  for place in range(3):
    edges = pairs[place:] + pairs[:place]
    write(path, *("\t".join(edge) for edge in edges))
    assert list(read_edges(path, nodes)) == edges
    found = [(pair["query_id"], pair["passage_id"]) for pair in LinkGraph(str(folder)).examples("train")]
    assert found == edges
    write(path, "# source\ttarget", *("\t".join(edge) for edge in edges))  # a header all the same
    assert list(read_edges(path, nodes)) == edges
  write(path, "#1\tabsent", "target\t#1")
  assert list(read_edges(path, nodes)) == [Edge("target", "#1")]
  assert list(read_edges(path)) == [Edge("target", "#1")]


def test_the_first_edge_of_every_split_counts(folder: pathlib.Path, tmp_path: pathlib.Path):
  write(folder / "nodes.jsonl", '{"id": "#1"}', '{"id": "2"}', '{"id": "3"}')
  write(folder / "edges.train.tsv", "#1\t2")
  write(folder / "edges.test.tsv", "#1\t3")
  assert list(LinkGraph(str(folder)).filter_pairs("test")) == [("#1", "2")]
  out = tmp_path / "split"
  out.mkdir()
  counts = write_split(folder / "nodes.jsonl", folder / "edges.train.tsv", out, shares=Shares(test=0.0))
  assert counts == {"nodes": 3, "train": 1}
  assert list(read_edges(out / "edges.train.tsv")) == [Edge("#1", "2")]


def test_links_of_other_splits_are_no_results(
  folder: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path
):
  write(folder / "edges.train.tsv", "0\t1", "0\t00", "1\t0", "1\t00")
  write(folder / "edges.dev.tsv", "1\t00", "1\t1")
  write(folder / "edges.test.tsv", "0\t1", "00\t0", "nowhere\t0", *["00\t1"] * 99)
  graph = LinkGraph(str(folder))
  assert list(graph.filter_pairs("train")) == []
  assert list(graph.filter_pairs("dev")) == [("1", "0")]  # 1 -> 00 is of dev itself
  assert list(graph.filter_pairs("test")) == [("0", "00")]  # 0 -> 1 is of test itself, and 1 asks for nothing
  data = load(LinkGraph(str(folder), "test"), inputs, cache=tmp_path / "cache")
  assert data.filtered is not None
  filtered = {
    data.queries.ids[row]: data.filtered.row(row)[0].tolist() for row in range(data.queries.num_rows)
  }
  assert filtered == {"0": [1], "00": []}
  assert load(graph, inputs, cache=tmp_path / "cache").filtered is None


def test_dangling_edges_are_left_out_up_to_1_percent(caplog: pytest.LogCaptureFixture):
  edges = [Edge("a", "b")] * 99 + [Edge("a", "c")]
  with caplog.at_level(logging.WARNING):
    assert list(known_edges(edges, {"a", "b"}, where="toy")) == edges[:99]
  assert "toy: 1 of 100 edges name nodes that are not there ('a' -> 'c')" in caplog.text
  with pytest.raises(UserError, match=r"1 of 99 edges .* Above 1%"):
    list(known_edges(edges[1:], {"a", "b"}, where="toy"))


@pytest.mark.parametrize(
  "name, lines, message",
  [
    ("nodes.jsonl", ['{"id": 1}', '{"title": "t"}'], r"nodes\.jsonl:2: id is None; expected text or a whole"),
    ("nodes.jsonl", ['{"id": 1}', '{"id": 1, "title": "t"}'], r"nodes\.jsonl:2: the id '1' .*nodes\.jsonl:1"),
    ("nodes.jsonl", ['{"id": 1, "text": ["t"]}'], r"nodes\.jsonl:1: text is \['t'\]; expected text"),
    ("nodes.jsonl", ['{"id": 1, "tags": {"a": 1}}'], r"nodes\.jsonl:1: tags is \{'a': 1\}; expected text, a"),
    ("nodes.tsv", ["name\ttext"], r"nodes\.tsv:1: the first line .* must name the columns, id among them"),
    ("nodes.tsv", ["id\ttext", "1\ta\tb"], r"nodes\.tsv:2: 3 columns, expected 2: id, text"),
    ("edges.tsv", ["0\t1", "0 1"], r"edges\.tsv:2: 1 columns, expected 2 split by a tab"),
  ],
)
def test_mistakes_name_file_and_line(tmp_path: pathlib.Path, name: str, lines: list[str], message: str):
  path = write(tmp_path / name, *lines)
  with pytest.raises(UserError, match=message):
    list(read_edges(path) if name.startswith("edges") else read_nodes(path))


def test_folders_that_are_no_link_graph(folder: pathlib.Path, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match="found 0 files of nodes and 0 of edges"):
    LinkGraph(str(tmp_path)).splits()
  write(folder / "debian_links.train.tsv", "0\t1")
  with pytest.raises(
    UserError, match=r"debian_links\.train\.tsv and edges\.train\.tsv are edges of .*'train'"
  ):
    LinkGraph(str(folder)).splits()


def test_counts_of_the_real_graphs(data_dir: pathlib.Path):
  graph = LinkGraph(str(data_dir / "graph_wikispeedia"))
  counts = {split: sum(1 for _ in graph.examples(split)) for split in graph.splits()}
  assert counts == {"train": 95_642, "dev": 6050, "test": 18_077, "corpus": 4598}
  debian = LinkGraph(str(data_dir / "graph_debian"))
  assert {split: sum(1 for _ in debian.examples(split)) for split in debian.splits()} == {
    "train": 300_076,
    "corpus": 60_376,
  }
