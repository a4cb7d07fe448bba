"""The data set `pydocs`: find the function from what it does, made from the docstrings of installed packages."""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tqdm import tqdm

from retrieval_jax import paths
from retrieval_jax.data.built_folder import built_folder
from retrieval_jax.data.docstrings import STDLIB, Docstring, read_docstrings, source_files
from retrieval_jax.errors import UserError

PACKAGES = (STDLIB, "numpy", "scipy", "jax", "optax", "flax")
SPLITS = ("train", "dev", "test")
RULES_VERSION = 4  # raise it when a rule below changes: every cached copy is then made anew
QUERY_CHARACTERS = range(20, 201)
PASSAGE_CHARACTERS = 200

SIGNATURE = re.compile(r"^[\w.\[\], ]*\w\(.*\)(\s*(->|=).*)?[.:]?$|^[\w., ]+ = [\w.]+\(")
SENTENCE_END = re.compile(
  r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bcf\.)(?<!\bvs\.)(?<!\betc\.)(?<=[.!?])\s+(?=[A-Z`'\"(*])"
)
ROLE = re.compile(r":[\w:]+:`~?([^`<]+?)(?:\s*<[^`]*>)?`")
SECTION = re.compile(
  r"^(Parameters|Args|Arguments|Returns?|Yields|Raises|Attributes|Examples?|Notes?)\s*(:|-{3,})"
)
TEMPLATE_LINE = re.compile(r"^\s*%\(\w+\)s\s*$\n?", re.MULTILINE)


class Pair(NamedTuple):
  """One example: the function's qualified name, what it does (the query) and the rest of its docstring."""

  name: str
  query: str
  passage: str

  @property
  def split(self) -> str:
    """80% train, 10% dev, 10% test, by a hash of the name: a new package version moves no old pair."""
    bucket = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big") % 10
    return "test" if bucket == 9 else "dev" if bucket == 8 else "train"


def pair_of(docstring: Docstring) -> Pair | None:
  """Returns the docstring's summary sentence and the rest of it, or None if a rule turns it away.

  A first paragraph that is a signature is skipped. Turned away: a summary that starts with "Wrapper for", is a
  section ("Parameters ---") or has fewer than 20 or more than 200 characters; a rest of fewer than 200 characters (says too little to be found by).

  Example: the docstring "add(a, b)\\n\\nAdd two arrays element by element.\\n\\nThe arrays are broadcast
  against each other first." gives the query "Add two arrays element by element."
  """
  paragraphs = re.split(r"\n\s*\n", TEMPLATE_LINE.sub("", docstring.text).strip())
  while paragraphs and SIGNATURE.match(_joined(paragraphs[0])):
    del paragraphs[0]
  if not paragraphs:
    return None
  sentences = SENTENCE_END.split(_joined(paragraphs[0]), maxsplit=1)
  query = ROLE.sub(r"\1", sentences[0]).replace("`", "")
  passage = "\n\n".join([*sentences[1:], *paragraphs[1:]]).strip()
  if len(query) not in QUERY_CHARACTERS or query.startswith("Wrapper for") or SECTION.match(query):
    return None
  if len(passage) < PASSAGE_CHARACTERS:
    return None
  return Pair(docstring.name, query, passage)


def _joined(paragraph: str) -> str:
  return " ".join(paragraph.split())


def pairs_of(docstrings: Iterable[Docstring]) -> list[Pair]:
  """Returns the pairs in the order of their names; of equal names, passages or queries the first one stays.

  Equal queries go because each has two right answers and would be credited with one, perhaps across splits.
  """
  pairs, seen = [], (set(), set(), set())
  for pair in sorted(filter(None, map(pair_of, docstrings))):
    if not any(value in values for value, values in zip(pair, seen, strict=True)):
      pairs.append(pair)
      for value, values in zip(pair, seen, strict=True):
        values.add(value)
  return pairs


def versions() -> dict[str, str]:
  """Returns the version of Python and of each package; they and the rules decide the data.

  Raises: UserError if a package is absent.
  """
  found = {STDLIB: platform.python_version()}
  for package in PACKAGES[1:]:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      raise UserError(
        f"pydocs is made from the docstrings of {', '.join(PACKAGES[1:])}, and {package} is not installed. "
        f"Install it with `pip install {package}`."
      ) from None
  return found


def fingerprint() -> str:
  """Returns a hash of what decides the data: the versions and the rules. Reads no source file."""
  text = json.dumps({"rules": RULES_VERSION, "versions": versions()}, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def prepare(cache: pathlib.Path | None = None) -> pathlib.Path:
  """Returns the folder with `<split>.jsonl` and manifest.json, made at the first call (about 10 s, 70 MB)."""
  target = (cache or paths.cache_dir()) / "pydocs" / fingerprint()[:16]
  definition = {"rules": RULES_VERSION, "versions": versions()}
  return built_folder(target, definition=definition, build=_build)


def _build(folder: pathlib.Path) -> None:
  sources = [source for package in PACKAGES for source in source_files(package)]
  docstrings = []
  for module, path in tqdm(sources, desc="read docstrings", unit=" files", mininterval=1.0):
    docstrings.extend(read_docstrings(module, path.read_bytes()))
  pairs = pairs_of(docstrings)
  for split in SPLITS:
    with paths.atomic_write(folder / f"{split}.jsonl") as file:
      for pair in pairs:
        if pair.split == split:
          file.write(json.dumps(pair._asdict(), ensure_ascii=False) + "\n")


def read_pairs(split: str, cache: pathlib.Path | None = None) -> Iterator[Pair]:
  """Yields the pairs of one split in the order of their names."""
  with open(prepare(cache) / f"{split}.jsonl", "rb") as file:
    for line in file:
      yield Pair(**json.loads(line))


def main() -> None:
  """Builds the data and prints where it lies and how many pairs each split has."""
  argparse.ArgumentParser(prog="python -m retrieval_jax.data.pydocs", description=main.__doc__).parse_args()
  print(prepare())
  for split in SPLITS:
    print(f"{split:6}{sum(1 for _ in read_pairs(split)):6} pairs")


if __name__ == "__main__":
  main()
