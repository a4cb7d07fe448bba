"""The download scripts: what they list, fetch, skip and refuse, against a server on loopback."""

import hashlib
import importlib.util
import io
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Iterator
from types import ModuleType

import pytest
from file_server import FileServer, leftovers, serving

from retrieval_jax.data.benchmarks import BEIR_PUBLIC, BEIR_WITHHELD, GROUPS
from retrieval_jax.data.download_program import DataSet, Remote, run

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
NAMES = ("beir", "msmarco", "multireqa")


def zip_of(files: dict[str, str]) -> bytes:
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w") as archive:
    for name, text in files.items():
      archive.writestr(name, text)
  return buffer.getvalue()


TOY = zip_of({"toy/corpus.jsonl": "c", "toy/qrels/test.tsv": "q"})
SETS = {
  "toy": DataSet(
    (
      Remote(
        "https://a.org/b/toy.zip", "sets/toy", md5=hashlib.md5(TOY).hexdigest(), size=len(TOY), unpacks=True
      ),
      Remote("https://c.org/qrels.txt", "sets/toy/qrels.txt"),
    ),
    note="two files",
  ),
  "held": DataSet(withheld="ask its owner."),
}


@pytest.fixture
def server() -> Iterator[FileServer]:
  with serving() as running:
    running.files |= {"/b/toy.zip": TOY, "/qrels.txt": b"1 0 2 3\n"}
    yield running


def script(name: str) -> ModuleType:
  spec = importlib.util.spec_from_file_location(f"download_{name}", SCRIPTS / f"download_{name}.py")
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_downloads_unpacks_and_does_not_do_it_again(
  server: FileServer, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
  flags = ["--output", str(tmp_path), "--base_url", server.url]
  assert run(SETS, doc="toy", argv=["--names", "toy", *flags]) == 0
  folder = [
    "sets/toy/.downloads.json",
    "sets/toy/corpus.jsonl",
    "sets/toy/qrels.txt",
    "sets/toy/qrels/test.tsv",
  ]
  assert leftovers(tmp_path) == folder
  assert [path for path, _, _ in server.seen] == ["/b/toy.zip", "/qrels.txt"]
  capsys.readouterr()
  assert run(SETS, doc="toy", argv=["--names", "all", *flags]) == 0
  assert len(server.seen) == 2
  assert capsys.readouterr().out.count("is there") == 2
  run(SETS, doc="toy", argv=["--list", *flags])
  held, toy = sorted(capsys.readouterr().out.splitlines()[2:])
  assert held.split() == ["held", "withheld", "ask", "its", "owner."]
  assert toy.split() == ["toy", "size", "unknown", "there", "two", "files"]


def test_an_archive_is_kept_if_asked(server: FileServer, tmp_path: pathlib.Path):
  run(
    SETS,
    doc="toy",
    argv=["--names", "toy", "--keep_archives", "--output", str(tmp_path), "--base_url", server.url],
  )
  assert (tmp_path / "toy.zip").read_bytes() == TOY


def test_a_dry_run_writes_nothing(
  server: FileServer, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
  assert run(SETS, doc="toy", argv=["--names", "toy", "--dry_run", "--output", str(tmp_path)]) == 0
  assert (
    f"https://a.org/b/toy.zip ({len(TOY) / 1e6:.1f} MB) -> {tmp_path}/sets/toy" in capsys.readouterr().out
  )
  assert (leftovers(tmp_path), server.seen) == ([], [])


@pytest.mark.parametrize(
  "names, message",
  [
    ([], "error: name the sets, such as --names toy, or --names all"),
    (["--names", "tory"], "error: no set is called 'tory'; did you mean 'toy'?"),
    (["--names", "toy", "held"], "error: held cannot be downloaded: ask its owner."),
  ],
)
def test_wrong_names(
  names: list[str], message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
  assert run(SETS, doc="toy", argv=[*names, "--output", str(tmp_path)]) == 2
  assert message in capsys.readouterr().err


def test_an_output_that_cannot_be(
  server: FileServer, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
  (tmp_path / "file").touch()
  flags = ["--names", "toy", "--output", str(tmp_path / "file"), "--base_url", server.url]
  assert run(SETS, doc="toy", argv=flags) == 2
  assert "error: [Errno" in capsys.readouterr().err


def test_an_interrupted_download_says_how_to_go_on(server: FileServer, tmp_path: pathlib.Path):
  server.faults = [("stall", 10)]
  script = f"""
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
    sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}]
    from test_download_scripts import SETS, run
    sys.exit(run(SETS, doc="", argv=["--names", "toy", "--output", {str(tmp_path)!r}, "--base_url", {server.url!r}]))
  """
  process = subprocess.Popen(
    [sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.PIPE, text=True
  )
  while not server.seen:
    assert process.poll() is None
    time.sleep(0.01)
  process.send_signal(signal.SIGINT)
  assert process.wait() == 130
  assert process.stderr is not None
  assert process.stderr.read() == "stopped; the same command goes on from here\n"


def test_a_folder_of_the_users_own_stays_as_it_is(
  server: FileServer, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
  (tmp_path / "sets/toy").mkdir(parents=True)
  (tmp_path / "sets/toy/corpus.jsonl").write_text("mine")
  flags = ["--names", "toy", "--output", str(tmp_path), "--base_url", server.url]
  assert run(SETS, doc="toy", argv=flags) == 2
  assert "sets/toy is there, but this program did not make it" in capsys.readouterr().err
  assert leftovers(tmp_path) == ["sets/toy/corpus.jsonl"]


@pytest.mark.parametrize(
  "name, path, target",
  [
    ("beir", "/thakur/BEIR/datasets/scifact.zip", "scifact.zip"),
    ("msmarco", "/msmarcoranking/collectionandqueries.tar.gz", "collectionandqueries.tar.gz"),
    ("multireqa", "/mrqa/release/v2/train/SQuAD.jsonl.gz", "mrqa/train/SQuAD.jsonl.gz"),
  ],
)
def test_a_file_that_is_not_the_published_one(
  server: FileServer, tmp_path: pathlib.Path, name: str, path: str, target: str
):
  server.files[path] = TOY
  names = {"beir": ["scifact"], "msmarco": ["passage"], "multireqa": ["squad"]}[name]
  command = [
    sys.executable,
    str(SCRIPTS / f"download_{name}.py"),
    "--output",
    str(tmp_path),
    "--base_url",
    server.url,
  ]
  done = subprocess.run([*command, "--names", *names], capture_output=True, text=True, check=False)
  assert done.returncode == 2
  assert f"kept as {tmp_path / target}.wrong and not used" in done.stderr
  assert leftovers(tmp_path) == [f"{target}.wrong"]


def test_every_public_set_has_a_download_and_the_others_a_reason():
  beir = script("beir").sets()
  assert {name.replace("-", "_") for name in beir if beir[name].files} == {*BEIR_PUBLIC, "msmarco"}
  assert {name.replace("-", "_") for name in beir if beir[name].withheld} == set(BEIR_WITHHELD)
  assert [f"multireqa_{name}" for name in script("multireqa").sets()] == list(GROUPS["multireqa"])


@pytest.mark.parametrize("name", NAMES)
def test_no_two_files_lie_in_one_place_and_sums_are_whole(name: str):
  files = [remote for found in script(name).sets().values() for remote in found.files]
  places = [remote.url if remote.unpacks else remote.path for remote in files]
  assert len(set(places)) == len(places)
  sums = [remote.sha256 or remote.md5 for remote in files if remote.sha256 or remote.md5]
  assert len(set(sums)) == len(sums)
  assert all(len(found) in (32, 64) and int(found, 16) for found in sums)
  assert all(
    remote.path.endswith("candidates.json.gz") for remote in files if not (remote.sha256 or remote.md5)
  )
