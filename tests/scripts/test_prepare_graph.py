"""scripts/prepare_graph.py: packages, a planted graph and one's own edges become folders that LinkGraph reads."""

import importlib.util
import json
import pathlib
import signal
import subprocess
import sys

import pytest

from retrieval_jax.data.extreme_writer import whole_folder
from retrieval_jax.data.link_graph import LinkGraph

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "prepare_graph.py"


@pytest.fixture(scope="module")
def main():
  spec = importlib.util.spec_from_file_location("prepare_graph", SCRIPT)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.main


def write(path: pathlib.Path, *lines: str) -> str:
  path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
  return str(path)


def counts(folder: pathlib.Path) -> dict[str, int]:
  graph = LinkGraph(str(folder))
  return {split: sum(1 for _ in graph.examples(split)) for split in graph.splits()}


def test_packages(main, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
  index = write(
    tmp_path / "Packages",
    *("Package: a", "Depends: b (>= 1)", "Suggests: c", "", "Package: b", "", "Package: c"),
  )
  assert main(["packages", str(tmp_path / "out"), "--index", index]) == 0
  assert capsys.readouterr().out == (
    f"{tmp_path}/out: 3 of 3 packages have links (depends, pre-depends, recommends, suggests, enhances), 2 in all; from "
    f"{index}.\n"
  )
  assert counts(tmp_path / "out") == {"train": 2, "corpus": 3}
  assert main(["packages", str(tmp_path / "other"), "--index", index, "--links", "Depends,enhances"]) == 0
  assert counts(tmp_path / "other") == {"train": 1, "corpus": 2}
  assert main(["packages", str(tmp_path / "third"), "--index", index, "--links", "needs"]) == 2
  assert "no field of links is called 'needs'" in capsys.readouterr().err


def test_planted(main, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
  out = tmp_path / "out"
  assert main(["planted", str(out), "--items", "200", "--topics", "10", "--seed", "5"]) == 0
  record = json.loads((out / "planted.json").read_text())
  assert (record["items"], record["topics"], record["seed"]) == (200, 10, 5)
  assert counts(out) == {split: record[split] for split in ("dev", "test", "train")} | {"corpus": 200}
  text = capsys.readouterr().out
  assert text.startswith(f"{out}: 200 items; links: {record['train']:,} train, ")
  assert f"{record['oracle_map@10']:.4f} by what was planted" in text


def test_split_of_files_with_other_names(main, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
  nodes = write(tmp_path / "people.jsonl", *(json.dumps({"id": i, "title": f"n{i}"}) for i in range(20)))
  pairs = [f"{a}\t{b}" for a in range(20) for b in range(20)]
  edges = write(tmp_path / "knows.tsv", *pairs, pairs[0])
  out = tmp_path / "out"
  assert (
    main(["split", str(out), "--nodes", nodes, "--edges", edges, "--dev_share", "0.1", "--test_share", "0.2"])
    == 0
  )
  found = counts(out)
  assert found.pop("corpus") == 20
  assert sum(found.values()) == 400
  assert found["train"] > found["test"] > found["dev"] > 20
  assert capsys.readouterr().out == (
    f"{out}: 20 nodes; edges: {found['train']} train, {found['dev']} dev, {found['test']} test.\n"
  )
  assert main(["split", str(out), "--nodes", nodes, "--edges", edges]) == 2
  assert "is there already. Name another folder" in capsys.readouterr().err


def test_what_cannot_be_split_leaves_nothing_behind(
  main, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
  nodes = write(tmp_path / "nodes.tsv", "id", "a", "b")
  edges = write(tmp_path / "edges.tsv", "a\tb", "b\ta", "a b")
  out = tmp_path / "made" / "out"
  assert main(["split", str(out), "--nodes", nodes, "--edges", edges]) == 2
  assert "edges.tsv:3: 1 columns, expected 2" in capsys.readouterr().err
  assert main(["split", str(out), "--nodes", nodes, "--edges", edges, "--test_share", "1"]) == 2
  assert "0.0 and 1.0; expected numbers from 0 to below 1" in capsys.readouterr().err
  assert main(["split", str(out), "--nodes", nodes, "--edges", str(tmp_path / "none")]) == 2
  assert "none: no such file" in capsys.readouterr().err
  assert list((tmp_path / "made").iterdir()) == []


def test_a_seed_that_is_too_large(main, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
  assert main(["planted", str(tmp_path / "out"), "--items", "200", "--topics", "10", "--seed", "9" * 20]) == 2
  assert "a planted graph of seed 99999999999999999999: expected one of 64 bits" in capsys.readouterr().err
  assert list(tmp_path.iterdir()) == []


PLANTED = ("--items", "50", "--topics", "10")


def test_outputs_that_are_links(main, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
  link, real = tmp_path / "link", tmp_path / "elsewhere"
  link.symlink_to(real)
  assert main(["planted", str(link), *PLANTED]) == 2
  captured = capsys.readouterr()
  assert captured.err.endswith(
    f"error: {link} is a link to {real}, which is not there. Make that folder, or name another one.\n"
  )
  assert "plant a graph" not in captured.err  # nothing was drawn
  real.mkdir()
  assert main(["planted", str(link), *PLANTED]) == 0
  assert counts(real)["corpus"] == 50
  assert link.is_symlink()
  assert sorted(tmp_path.iterdir()) == [real, link]


def test_a_run_that_was_killed_is_cleaned_up_by_the_next(main, tmp_path: pathlib.Path):
  killed = [sys.executable, "-c", KILLED, str(tmp_path / "out")]
  assert subprocess.run(killed).returncode == -signal.SIGKILL
  (left,) = tmp_path.iterdir()
  assert (left / "half").exists()
  mine, other = tmp_path / ".out.settings", tmp_path / f"{left.name[:4]}er{left.name[4:]}"
  mine.mkdir()  # of other things and of other outputs nothing is removed
  other.mkdir()
  assert main(["planted", str(tmp_path / "out"), *PLANTED]) == 0
  assert sorted(tmp_path.iterdir()) == sorted([mine, other, tmp_path / "out"])


KILLED = """
import os, pathlib, signal, sys
from retrieval_jax.data.extreme_writer import whole_folder
with whole_folder(pathlib.Path(sys.argv[1])) as folder:
  (folder / "half").touch()
  os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_goes_on_keeps_its_folder(tmp_path: pathlib.Path):
  with whole_folder(tmp_path / "out") as first:
    with whole_folder(tmp_path / "out") as second:
      assert first != second
    assert first.is_dir()
  assert list(tmp_path.iterdir()) == [tmp_path / "out"]
