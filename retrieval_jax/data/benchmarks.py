"""Public benchmarks: where their files lie, the groups whose published result is a mean, and what they should hold."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from retrieval_jax import paths
from retrieval_jax.data.features import CORPUS, corpus_of
from retrieval_jax.errors import UserError

if TYPE_CHECKING:
  from retrieval_jax.data.dataset import RetrievalData

ROOT_VARIABLE = "RETRIEVAL_JAX_DATA"

FORUMS = (
  *("android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats"),
  *("tex", "unix", "webmasters", "wordpress"),
)
BEIR_PUBLIC = (
  *(
    "trec_covid",
    "nfcorpus",
    "nq",
    "hotpotqa",
    "fiqa",
    "arguana",
    "webis_touche2020",
    "cqadupstack",
    "quora",
  ),
  *("dbpedia_entity", "scidocs", "fever", "climate_fever", "scifact"),
)
BEIR_WITHHELD = ("bioasq", "signal1m", "trec_news", "robust04")  # their owners give them to those who ask
MULTIREQA_TRAINED = ("nq", "squad", "triviaqa", "searchqa", "hotpotqa")
MULTIREQA_EVAL_ONLY = ("bioasq", "relation_extraction", "textbookqa", "duorc")

# A group's result is the mean over its members, each counting the same. A member may be a group. "beir" is the mean that
# papers report: 18 sets, of which CQADupStack is one.
GROUPS: Mapping[str, Sequence[str]] = {
  "beir_cqadupstack": tuple(f"beir_cqadupstack_{forum}" for forum in FORUMS),
  "beir": tuple(f"beir_{name}" for name in (*BEIR_PUBLIC, *BEIR_WITHHELD)),
  "beir_public": tuple(f"beir_{name}" for name in BEIR_PUBLIC),
  "multireqa": tuple(f"multireqa_{name}" for name in (*MULTIREQA_TRAINED, *MULTIREQA_EVAL_ONLY)),
}


def members(name: str) -> Sequence[str]:
  """Returns the members of a group: tasks, or groups in their turn; empty for a name that is no group's."""
  return GROUPS.get(name, ())


def tasks_of(name: str) -> Sequence[str]:
  """Returns the tasks that a name stands for: those of a group and of the groups in it, or the name alone.

  Example: `len(tasks_of("beir"))` is 29: 17 sets and the 12 forums of CQADupStack.
  """
  group = members(name)
  return [task for member in group for task in tasks_of(member)] if group else [name]


def macro_mean(name: str, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """Returns the mean of each metric over a group's members; that of a group within counts as one.

  Metrics that some member lacks are left out.

  Args:
    name: the group.
    results: task -> metric -> value.

  Raises: UserError that names the tasks without results: a mean over the others would be another number by the same
  name.

  Example: `macro_mean("beir_cqadupstack", {"beir_cqadupstack_android": {"ndcg@10": 0.4}, ...})`.
  """
  if not members(name):
    raise UserError(f"{name!r} is no group of tasks; the groups: {', '.join(GROUPS)}.")
  missing = [task for task in tasks_of(name) if task not in results]
  if missing:
    raise UserError(
      f"{name} is the mean over {len(tasks_of(name))} tasks, and {len(missing)} have no result: {', '.join(missing)}. "
      "Evaluate them too, or report the tasks alone."
    )
  found = [macro_mean(member, results) if members(member) else results[member] for member in members(name)]
  shared = [metric for metric in found[0] if all(metric in one for one in found)]
  return {metric: float(np.mean([one[metric] for one in found])) for metric in shared}


def data_root() -> pathlib.Path:
  """Returns the folder that public files are looked for in: $RETRIEVAL_JAX_DATA, or "data" in the cache folder."""
  named = os.environ.get(ROOT_VARIABLE)
  return pathlib.Path(named).expanduser() if named else paths.cache_dir() / "data"


def benchmark_dir(*names: str, get: str) -> pathlib.Path:
  """Returns the first of the folders `names` that is below `data_root()`.

  Args:
    names: paths, such as "beir/scifact" and "scifact".
    get: the command that downloads it, or where to ask for it.

  Raises: UserError that names every place looked at.

  Example: `benchmark_dir("beir/scifact", "scifact", get="python scripts/download_beir.py --names scifact")`.
  """
  places = [data_root() / name for name in names]
  for place in places:
    if place.is_dir():
      return place
  raise UserError(
    f"{names[0]} is not here: looked at {', '.join(map(str, places))}. Get it with `{get}`, or set {ROOT_VARIABLE} to "
    "the folder that has it."
  )


def check_counts(data: "RetrievalData") -> list[str]:
  """Returns a message for each published number, of judged queries or of passages, that the data differ from.

  They then are of another version than published results, or cut: results do not compare. What the task declares no
  number for is not looked at.
  """
  counts = data.info.counts
  corpus = corpus_of(data.split, list(counts)) or CORPUS
  found = {corpus: (data.passages.num_rows, "passages"), data.split: (len(data.judged), "judged queries")}
  return [
    f"{data.name}, split {data.split}: {number:,} {what}, but {counts[key]:,} are published: published results were "
    "measured on other data."
    for key, (number, what) in found.items()
    if counts.get(key, number) != number
  ]


def check_files(data: "RetrievalData") -> list[str]:
  """Returns a message for each file that has another md5 than the task declares for its name.

  A name may have folders before it ("train/SQuAD.jsonl.gz"). A file that was compressed or unpacked since has another
  name and is not looked at.
  """
  return [
    f"{path}: its md5 is {found['md5']}, but {published} is published: the file was changed, or is of another version."
    for path, found in data.files.items()
    for name, published in data.info.checksums.items()
    if f"/{path}".endswith(f"/{name}") and found["md5"] != published
  ]
