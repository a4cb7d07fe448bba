"""Memory of reading and of preparing a corpus: it does not grow with the texts."""

import gzip
import hashlib
import json
import pathlib
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard

from retrieval_jax.data.beir import read_beir_corpus
from retrieval_jax.data.dataset import load
from retrieval_jax.data.file_sources import BeirFolder
from retrieval_jax.data.text_inputs import TextInputs

PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
FEW, MANY = 150, 450  # passages: 1.5 MB and 4.5 MB, more than the buffers of files


def peak(action: Callable[[], object]) -> int:
  """Returns the bytes that Python and numpy held at most, beyond what they held before."""
  tracemalloc.start()
  try:
    action()
    return tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


def text(number: int) -> str:
  """Returns 10 kB that do not compress well."""
  return " ".join(hashlib.sha256(f"{number} {part}".encode()).hexdigest() for part in range(154))


def write_folder(folder: pathlib.Path, passages: int, ending: str = "") -> pathlib.Path:
  lines = (json.dumps({"_id": str(i), "text": text(i)}) + "\n" for i in range(passages))
  (folder / "qrels").mkdir(parents=True)
  (folder / f"corpus.jsonl{ending}").write_bytes(PACK[ending]("".join(lines).encode()))
  (folder / "queries.jsonl").write_text('{"_id": "q", "text": "red ?"}\n')
  (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t7\t1\n")
  return folder


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_reading_takes_a_few_bytes_a_passage(tmp_path: pathlib.Path, ending: str):
  peaks = []
  for count in (FEW, MANY):
    folder = write_folder(tmp_path / str(count), count, ending)
    peaks.append(peak(lambda folder=folder: sum(1 for _ in read_beir_corpus(folder))))
  # Of 10,000 bytes that a passage has; reading gzip keeps 0.1 MB more for the longer file since Python 3.12.
  assert peaks[1] - peaks[0] < 500 * (MANY - FEW)


def test_preparing_takes_a_few_bytes_a_passage(inputs: TextInputs, tmp_path: pathlib.Path, monkeypatch):
  monkeypatch.setattr("retrieval_jax.data.token_store.CHUNK", 10)
  source = BeirFolder(str(write_folder(tmp_path / "warm", 10)), "test")
  load(source, inputs, cache=tmp_path / "cache")  # what is imported and kept once is not counted
  peaks = []
  for count in (FEW, MANY):
    source = BeirFolder(str(write_folder(tmp_path / str(count), count)), "test")
    peaks.append(peak(lambda source=source: load(source, inputs, cache=tmp_path / "cache")))
  assert peaks[1] - peaks[0] < 500 * (MANY - FEW)


def test_resident_memory_of_tokenising_does_not_grow_with_the_files(
  inputs: TextInputs, tmp_path: pathlib.Path
):
  """A file that is mapped into memory is no allocation, and yet counts as memory while its pages stay."""
  data = load(BeirFolder(str(write_folder(tmp_path / "x", FEW)), "test"), inputs, cache=tmp_path / "cache")
  assert sum(map(len, data.passages.texts)) > 10_000 * FEW
  blobs = [line for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "texts.utf8" in line]
  assert blobs == []
