"""The rules of pydocs on literal docstrings, and one real build."""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import pytest

from retrieval_jax.data import pydocs
from retrieval_jax.data.docstrings import Docstring
from retrieval_jax.data.pydocs import Pair, pair_of, pairs_of
from retrieval_jax.errors import UserError

REST = "The arrays are broadcast against each other first. " * 8
QUERY = "Add two arrays element by element."


def query_of(text: str) -> str | None:
  pair = pair_of(Docstring("m.f", text))
  return pair and pair.query


def test_query_is_the_summary_and_passage_the_rest():
  text = f"Add two arrays\nelement by element. Works in place.\n\n{REST}\n\n    >>> add(1, 2)"
  assert pair_of(Docstring("m.add", text)) == Pair(
    "m.add", QUERY, f"Works in place.\n\n{REST}\n\n    >>> add(1, 2)"
  )


@pytest.mark.parametrize(
  "signature",
  [
    "add(x, y)",
    "add(x, /, y, *, out=None) -> array",
    "np.add(x,\n    y=(1, 2))",
    "y = add(x)",
    "ndarray.add(x).",
    "a, b = f(x)",
  ],
)
def test_a_signature_is_skipped(signature: str):
  assert query_of(f"{signature}\n\n{QUERY}\n\n{REST}") == QUERY


@pytest.mark.parametrize(
  "summary, query",
  [
    ("Return the sum, e.g. The total. More.", "Return the sum, e.g. The total."),
    ("Round to version 1.2 of the standard. Then stop.", "Round to version 1.2 of the standard."),
    ("Return ``x`` for :func:`~numpy.add` and :class:`Foo <m.Foo>`.", "Return x for numpy.add and Foo."),
    ("Cumulative sum along an axis", "Cumulative sum along an axis"),
    ("Evaluate the function (see [1]_) at a point.", "Evaluate the function (see [1]_) at a point."),
    ("%(prelude)s\nSolve the equation for a root.", "Solve the equation for a root."),
  ],
)
def test_summary_sentence(summary: str, query: str):
  assert query_of(f"{summary}\n\n{REST}") == query


@pytest.mark.parametrize(
  "summary",
  [
    "Too short to find.",  # 18 characters
    "x" * 201,
    "Wrapper for the C function of that name.",
    "Parameters\n----------\nx : array_like, the input of the function",
    "Args: x is the input of the function, y the output.",
  ],
)
def test_summaries_that_are_turned_away(summary: str):
  assert query_of(f"{summary}\n\n{REST}") is None


def test_limits_are_inclusive():
  assert query_of(f"{'x' * 20}\n\n{REST}") == "x" * 20
  assert query_of(f"{'x' * 200}\n\n{REST}") == "x" * 200
  assert query_of(f"{QUERY}\n\n{'y' * pydocs.PASSAGE_CHARACTERS}") == QUERY
  assert query_of(f"{QUERY}\n\n{'y' * (pydocs.PASSAGE_CHARACTERS - 1)}") is None
  assert query_of("") is None
  assert query_of("add(x)") is None


def test_of_equal_names_passages_and_queries_the_first_name_stays():
  docstrings = [
    Docstring("m.c", f"Multiply two arrays by each other.\n\n{REST}"),
    Docstring("m.b", f"{QUERY}\n\n{REST}"),
    Docstring("m.d", f"{QUERY}\n\n{REST} But otherwise."),
    Docstring("m.e", f"Divide an array by another one.\n\n{REST} And more."),
    Docstring("m.e", f"Divide an array by a number.\n\n{REST} And less."),
  ]
  assert [(pair.name, pair.query) for pair in pairs_of(docstrings)] == [
    ("m.b", QUERY),
    ("m.e", "Divide an array by a number."),
  ]
  assert pairs_of(docstrings[::-1]) == pairs_of(docstrings)


def test_splits_hash_the_name():
  splits = [Pair(f"m.f{i}", "", "").split for i in range(2000)]
  assert splits[:3] == [Pair(f"m.f{i}", "other", "text").split for i in range(3)]
  shares = {split: splits.count(split) / 2000 for split in pydocs.SPLITS}
  assert shares["train"] == pytest.approx(0.8, abs=0.03)
  assert shares["dev"] == pytest.approx(0.1, abs=0.03)
  assert shares["test"] == pytest.approx(0.1, abs=0.03)


def test_real_build(pydocs_cache: pathlib.Path):
  folder = pydocs.prepare(pydocs_cache)
  definition = json.loads((folder / "manifest.json").read_text())["definition"]
  assert definition["versions"]["numpy"] == importlib.metadata.version("numpy")
  assert set(definition["versions"]) == set(pydocs.PACKAGES)
  pairs = {split: list(pydocs.read_pairs(split, pydocs_cache)) for split in pydocs.SPLITS}
  everything = [pair for split in pydocs.SPLITS for pair in pairs[split]]
  assert 4000 < len(everything) < 8000
  assert 0.08 < len(pairs["test"]) / len(everything) < 0.12
  assert all(pair.split == split for split in pydocs.SPLITS for pair in pairs[split])
  assert all(20 <= len(pair.query) <= 200 for pair in everything)
  for column in zip(*everything, strict=True):
    assert len(set(column)) == len(everything)
  assert pairs["test"] == sorted(pairs["test"])
  assert {"numpy", "scipy", "jax", "optax", "flax", "json"} <= {
    pair.name.split(".")[0] for pair in everything
  }
  assert not [pair for pair in everything if ".tests." in pair.name or pair.name.startswith("scipy._lib")]


def test_command_prints_the_counts(pydocs_cache: pathlib.Path):
  run = subprocess.run(
    [sys.executable, "-m", "retrieval_jax.data.pydocs"],
    env={"RETRIEVAL_JAX_CACHE": str(pydocs_cache), "PATH": ""},
    capture_output=True,
    text=True,
    check=True,
  )
  lines = run.stdout.splitlines()
  assert lines[0] == str(pydocs.prepare(pydocs_cache))
  assert [line.split()[0] for line in lines[1:]] == ["train", "dev", "test"]
  assert all(line.endswith(" pairs") for line in lines[1:])


def test_an_absent_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(pydocs, "PACKAGES", ("python", "no_such_package"))
  with pytest.raises(
    UserError, match=r"no_such_package is not installed\. Install it with `pip install no_such_package`"
  ):
    pydocs.fingerprint()
