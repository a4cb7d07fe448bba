"""Preparing a BEIR folder with a large corpus.jsonl (made up, 1 GB): peak memory and rate of reading it into the cache and
of tokenising it, in a process of its own. The goal is less than 1 GiB in all, the interpreter and its packages included.

A passage has a title and 60 to 200 words of 2 to 9 letters out of 20,000; tokens are cut at 128. The folder and the cache
are temporary: three times the corpus in disk space.

  python scripts/benchmarks/prepare_corpus.py --gigabytes 1
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

WORDS = 20_000
QUERIES = 1000
LENGTHS = (32, 128)  # tokens of a query and of a passage


def make(folder: pathlib.Path, size: int) -> int:
  """Fills the folder with a BEIR data set whose corpus has `size` bytes, and a tokenizer; returns the passages."""
  draw = random.Random(0)
  words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(WORDS)]
  (folder / "qrels").mkdir(parents=True)
  written = count = 0
  with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
    while written < size:
      text = " ".join(draw.choices(words, k=draw.randint(60, 200)))
      record = {"_id": f"doc{count}", "title": " ".join(draw.choices(words, k=5)), "text": text}
      written += file.write(json.dumps(record) + "\n")
      count += 1
  with (
    open(folder / "queries.jsonl", "w", encoding="utf-8") as queries,
    open(folder / "qrels/test.tsv", "w") as qrels,
  ):
    for number in range(QUERIES):
      queries.write(json.dumps({"_id": f"q{number}", "text": " ".join(draw.choices(words, k=6))}) + "\n")
      qrels.write(f"q{number}\tdoc{draw.randrange(count)}\t1\n")
  write_tokenizer(folder / "tokenizer.json", words)
  return count


def write_tokenizer(path: pathlib.Path, words: list[str]) -> None:
  """Writes a WordPiece tokenizer that knows the words as BERT's knows English."""
  import tokenizers
  from tokenizers import models, normalizers, pre_tokenizers, processors

  entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *dict.fromkeys(words)]
  tokenizer = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(entries)}, unk_token="[UNK]"))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
  )
  tokenizer.save(str(path))


def memory() -> dict[str, float]:
  """Returns the peak of resident memory so far and what is resident now, in MiB: all, anonymous and of files."""
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  values = dict(line.split(":", 1) for line in lines)
  return {name: int(values[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile")}


def prepare(folder: pathlib.Path, tokenise: bool) -> None:
  """Prepares the folder's test split in this process; prints one JSON line after each part."""
  from retrieval_jax.data.dataset import load
  from retrieval_jax.data.file_sources import BeirFolder
  from retrieval_jax.data.pair_table import pair_table
  from retrieval_jax.data.text_inputs import TextInputs
  from retrieval_jax.data.vocabularies import WordPiece

  source, cache = BeirFolder(str(folder), "test"), folder / "cache"
  print(json.dumps({"part": "imports", "seconds": 0.0, **memory()}), flush=True)
  start = time.perf_counter()
  pair_table(source, cache)
  print(json.dumps({"part": "read", "seconds": time.perf_counter() - start, **memory()}), flush=True)
  if tokenise:
    start = time.perf_counter()
    load(source, TextInputs(WordPiece(str(folder / "tokenizer.json")), *LENGTHS), cache=cache)
    print(json.dumps({"part": "tokenise", "seconds": time.perf_counter() - start, **memory()}), flush=True)
  print(json.dumps({"tensorflow": "tensorflow" in sys.modules, "jax": "jax" in sys.modules}), flush=True)


def main() -> None:
  """Makes the data, prepares them in a fresh process and prints a table."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
  parser.add_argument("--gigabytes", type=float, default=1.0, help="of corpus.jsonl (10**9 bytes each)")
  parser.add_argument("--no_tokenise", action="store_true", help="read only")
  parser.add_argument("--prepare", type=pathlib.Path, help=argparse.SUPPRESS)
  flags = parser.parse_args()
  if flags.prepare:
    prepare(flags.prepare, not flags.no_tokenise)
    return
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary) / "made_up"
    count = make(folder, int(flags.gigabytes * 1e9))
    size = (folder / "corpus.jsonl").stat().st_size
    print(f"corpus.jsonl: {size / 1e9:.3f} GB, {count} passages", flush=True)
    command = [sys.executable, __file__, "--prepare", str(folder)] + ["--no_tokenise"] * flags.no_tokenise
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
  print(
    f"{'part':10} {'seconds':>8} {'MB/s':>8} {'peak MiB so far':>16} {'now':>6} {'anonymous':>10} {'files':>6}"
  )
  *parts, modules = map(json.loads, done.stdout.splitlines())
  for part in parts:
    rate = f"{size / 1e6 / part['seconds']:8.1f}" if part["seconds"] else " " * 8
    numbers = f"{part['VmHWM']:16.0f} {part['VmRSS']:6.0f} {part['RssAnon']:10.0f} {part['RssFile']:6.0f}"
    print(f"{part['part']:10} {part['seconds']:8.1f} {rate} {numbers}")
  print(f"loaded: TensorFlow {modules['tensorflow']}, JAX {modules['jax']}")


if __name__ == "__main__":
  main()
