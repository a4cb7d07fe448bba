"""Package indices: paragraphs become packages and links, in every form that apt leaves them; the split of the links."""

import bz2
import collections
import dataclasses
import gzip
import lzma
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from retrieval_jax.data import package_index
from retrieval_jax.data.debian_packages import DebianPackages, link_fields, package_graph, write_packages
from retrieval_jax.data.link_graph import LinkGraph, Node, read_edges, read_nodes
from retrieval_jax.data.package_index import Package, index_files, read_packages
from retrieval_jax.data.split_graph import Shares, write_split
from retrieval_jax.errors import UserError

INDEX = """\
Package: tea
Version: 2.0-1
Depends: cup:any (>= 1.0), water (>= 3~rc1) [amd64] | mail-transport-agent,
 spoon (<< 2)
recommends: cup, tea
Tag: use::drinking, role::program,
 made-of::leaves
Section: non-free/food
Description: hot \t drink
 A long text
 .
 with: a colon, and two paragraphs.
X-Other: whatever

Package: cup
Section: food
Pre-Depends: clay
Enhances: tea
Description: holds a drink

Package: water
Description: wet
Provides: mail-transport-agent

Package: tea
Version: 2.1-1
Suggests: water, clay
Description: hotter drink


Package: clay
Description: earth
Depends:

Package: alone
Depends: nothing-here
"""


@pytest.fixture
def index(tmp_path: pathlib.Path) -> pathlib.Path:
  path = tmp_path / "Packages"
  path.write_text(INDEX, encoding="utf-8")
  return path


@pytest.fixture(autouse=True)
def _cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setenv("RETRIEVAL_JAX_CACHE", str(tmp_path / "cache"))


def test_packages_of_an_index(index: pathlib.Path):
  packages = list(read_packages(index))
  assert packages[:2] == [
    Package(
      "tea",
      "non-free/food",
      ["made-of::leaves", "role::program", "use::drinking"],
      "hot drink",
      ["cup", "water", "mail-transport-agent", "spoon", "cup", "tea"],
    ),
    Package("cup", "food", [], "holds a drink", ["clay", "tea"]),
  ]
  assert [package.name for package in packages] == ["tea", "cup", "water", "tea", "clay", "alone"]
  assert list(read_packages(index, ["suggests"]))[3].links == ["water", "clay"]


def test_the_graph_of_an_index(index: pathlib.Path, tmp_path: pathlib.Path):
  out = tmp_path / "out"
  assert write_packages([index], out) == {"packages": 5, "nodes": 4, "links": 5}
  assert list(read_nodes(out / "nodes.tsv")) == [
    Node("clay", "clay", "earth", {"section": [], "tags": []}),
    Node("cup", "cup", "holds a drink", {"section": ["food"], "tags": []}),
    Node(
      "tea",
      "tea",
      "hot drink",
      {"section": ["non-free/food"], "tags": ["made-of::leaves", "role::program", "use::drinking"]},
    ),
    Node("water", "water", "wet", {"section": [], "tags": []}),
  ]
  assert [tuple(edge) for edge in read_edges(out / "links.tsv")] == [
    ("cup", "clay"),
    ("cup", "tea"),
    ("tea", "clay"),  # of its second version
    ("tea", "cup"),
    ("tea", "water"),
  ]
  assert write_packages([index], out, links=["depends"])["links"] == 2


PACK = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("ending", ["gz", "xz", "bz2", "zst", "lz4"])
def test_compressed_indices(index: pathlib.Path, ending: str):
  packed = index.with_name(f"some_archive_Packages.{ending}")
  if ending == "zst":
    zstandard = pytest.importorskip("zstandard")
    packed.write_bytes(zstandard.compress(INDEX.encode()))
  elif ending == "lz4":
    if shutil.which("lz4") is None or not package_index.HELPER.is_file():
      pytest.skip("no program lz4, or no apt")
    subprocess.run(["lz4", "-q", str(index), str(packed)], check=True)
  else:
    packed.write_bytes(PACK[ending](INDEX.encode()))
  assert list(read_packages(packed)) == list(read_packages(index))
  packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
  with pytest.raises(UserError, match=rf"Packages\.{ending}:?.* cannot (be )?read"):
    list(read_packages(packed))


def test_lz4_without_anything_that_reads_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(package_index, "HELPER", tmp_path / "none")
  monkeypatch.setitem(sys.modules, "lz4.frame", None)
  (tmp_path / "Packages.lz4").write_bytes(b"")
  with pytest.raises(UserError, match=r"compressed with lz4, and neither .*none nor .* `pip install lz4`"):
    list(read_packages(tmp_path / "Packages.lz4"))


@pytest.mark.parametrize(
  "text, message",
  [
    ("Package: a\n\nSection: b\n", r"Packages:3: the paragraph that begins here names no package"),
    (" a\n", r"Packages:1: ' a' continues no field"),
    ("Package: a\nDepends\n", r"Packages:2: 'Depends'; expected `Field: value`"),
    ("Section: b\nPackage: a\nDepends: b, =c\n", r"Packages:3: depends has '=c'; expected names"),
    ("Package: a\n\nPackage: b\n", r"Packages: none of the 2 packages names another one"),
    (
      "Package: a\nDepends: b\nPackage: b\n",
      r"Packages:3: a second package in the paragraph .* line 1; .* empty",
    ),
    (
      "Package: a\ndepends: b\nDepends:\n",
      r"Packages:3: a second depends in the paragraph .* line 1; .* once",
    ),
    ("\nPackage:\nDepends: b\n", r"Packages:2: package is ''; expected a name of letters, digits"),
    ("Package: a\tb\n", r"Packages:1: package is 'a\\tb'; expected a name"),
    ("Depends: b\nPackage: a\n b\n", r"Packages:2: package is 'a\\nb'; expected a name"),
    ("Package: \xe9a\n", r"Packages:1: package is '\xe9a'; expected a name"),
    ("Package: a\nSection: x\ty\n", r"Packages:2: section is 'x\\ty'; expected one word"),
    ("Package: a\nSection: x y\n", r"Packages:2: section is 'x y'; expected one word"),
    ("Package: a\nSection: x\n y\n", r"Packages:2: section is 'x\\ny'; expected one word"),
    ("Package: a\nSection: x\u2028y\n", r"Packages:2: section is 'x\\u2028y'; expected one word"),
    ("Package: a\nTag: x, y\tz\n", r"Packages:2: tag has 'y\\tz'; expected words, split by commas"),
    ("Package: a\nTag: x::y,\n y\n z\n", r"Packages:2: tag has 'y\\nz'; expected words, split by commas"),
  ],
)
def test_what_is_no_index(tmp_path: pathlib.Path, text: str, message: str):
  (tmp_path / "Packages").write_text(text, encoding="utf-8")
  with pytest.raises(UserError, match=message):
    write_packages([tmp_path / "Packages"], tmp_path / "out")
  assert not (tmp_path / "out").exists()
  (tmp_path / "Packages").write_bytes(b"Package: a\nSection: \xff\n")
  with pytest.raises(UserError, match="Packages:2: not UTF-8"):
    list(read_packages(tmp_path / "Packages"))


def test_the_index_of_a_machine(tmp_path: pathlib.Path):
  with pytest.raises(UserError, match=r"this machine has no package index: .*lists/\*_Packages and .*status"):
    index_files(tmp_path)
  status = tmp_path / "var/lib/dpkg/status"
  status.parent.mkdir(parents=True)
  status.write_text(
    "Package: a\nStatus: install ok\tinstalled\nDepends: b\n\nPackage: b\nStatus: deinstall ok config-files\n"
  )
  assert index_files(tmp_path) == [status]
  assert [package.name for package in read_packages(status)] == ["a"]
  lists = tmp_path / "var/lib/apt/lists"
  (lists / "partial").mkdir(parents=True)
  for name in (
    "b_main_binary-arm64_Packages.lz4",
    "a_main_Packages",
    "a_InRelease",
    "a_Packages.diff_Index",
  ):
    (lists / name).write_text("")
  assert [file.name for file in index_files(tmp_path)] == [
    "a_main_Packages",
    "b_main_binary-arm64_Packages.lz4",
  ]


def test_fields_that_are_links():
  assert link_fields(("Depends", "recommends", "depends")) == ["depends", "recommends"]
  with pytest.raises(UserError, match=r"no field of links is called 'Recomends'; did you mean 'recommends'"):
    link_fields(["Recomends"])
  with pytest.raises(UserError, match="'depends'; expected a list"):
    link_fields("depends")
  for wrong in ([5], ["depends", None], 5, None, []):
    with pytest.raises(
      UserError, match=rf"the fields that are links: {re.escape(repr(wrong))}; expected a list"
    ):
      link_fields(wrong)  # pyright: ignore[reportArgumentType]


def test_links_are_split_by_a_hash(tmp_path: pathlib.Path):
  nodes, edges = tmp_path / "nodes.tsv", tmp_path / "edges.tsv"
  nodes.write_text("id\n" + "".join(f"{i}\n" for i in range(40)))
  pairs = [(a, b) for a in range(40) for b in range(40)]
  edges.write_text("".join(f"{a}\t{b}\n" for a, b in [*pairs, *pairs[:100]]))
  shares = Shares(dev=0.2, test=0.1, seed=3)
  (tmp_path / "out").mkdir()
  counts = write_split(nodes, edges, tmp_path / "out", shares=shares)
  found = {
    split: list(read_edges(tmp_path / "out" / f"edges.{split}.tsv")) for split in ("train", "dev", "test")
  }
  assert counts == {"nodes": 40, **{split: len(part) for split, part in found.items()}}
  assert collections.Counter(edge for part in found.values() for edge in part) == dict.fromkeys(
    read_edges(edges), 1
  )
  assert 280 < counts["dev"] < 360  # 20% of 1600, and 2.5 standard deviations
  assert 130 < counts["test"] < 190
  edges.write_text(
    "".join(f"{a}\t{b}\n" for a, b in reversed(pairs[:800]))
  )  # others leave, the order is another
  write_split(nodes, edges, tmp_path / "out", shares=shares)
  half = set(read_edges(edges))
  assert set(read_edges(tmp_path / "out/edges.test.tsv")) == half & set(found["test"])
  write_split(nodes, edges, tmp_path / "out", shares=shares._replace(seed=4))
  assert set(read_edges(tmp_path / "out/edges.test.tsv")) != half & set(found["test"])


def test_splits_that_cannot_be(tmp_path: pathlib.Path, index: pathlib.Path):
  with pytest.raises(UserError, match=r"0\.5 and 0\.5; expected numbers from 0 to below 1, below 1 together"):
    Shares(0.5, 0.5).check()
  with pytest.raises(UserError, match=r"links\.tsv: none of its 5 edges is test\. Give larger shares"):
    DebianPackages(str(index), test_share=1e-9).splits()
  folder = tmp_path / "split"
  folder.mkdir()
  for name in ("nodes.tsv", "edges.train.tsv", "edges.test.tsv"):
    (folder / name).write_text("id\n")
  with pytest.raises(UserError, match=r"split already \(edges\.test\.tsv, edges\.train\.tsv\)\. Read it as"):
    DebianPackages(str(folder)).splits()


def test_the_source(index: pathlib.Path, tmp_path: pathlib.Path):
  source = DebianPackages(str(index), "test", test_share=0.4)
  assert (source.name, list(source.splits())) == ("debian_packages", ["test", "train", "corpus"])
  folder = source.folder()
  assert folder.is_relative_to(tmp_path / "cache/split_graphs")
  edges = {split: list(read_edges(folder / f"edges.{split}.tsv")) for split in ("train", "test")}
  assert sorted(map(len, edges.values())) == sorted((len(edges["test"]), 5 - len(edges["test"])))
  assert list(source.examples("test")) == list(LinkGraph(str(folder)).examples("test"))
  assert source.info.drop_identical
  graph = package_graph(str(index))
  named = dataclasses.replace(source, path=str(graph))  # the same graph, as a folder
  assert named.name == graph.name
  assert list(named.examples("test")) == list(source.examples("test"))
  assert package_graph(str(index), links=["depends"]) != graph


def test_the_snapshot_of_debian_12(data_dir: pathlib.Path):
  source = DebianPackages(str(data_dir / "graph_debian"), "test")
  assert source.name == "graph_debian"
  edges = {split: list(read_edges(source.folder() / f"edges.{split}.tsv")) for split in ("train", "test")}
  assert {split: len(part) for split, part in edges.items()} == {"train": 270_082, "test": 29_994}
  assert len(set(edges["train"]) | set(edges["test"])) == 300_076
