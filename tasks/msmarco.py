"""The Task `msmarco_passage`: MS MARCO passage ranking, version 1.

Its splits are train, dev_small (the 6,980 queries that papers and the leaderboard report), dl19 and dl20 (TREC's Deep
Learning tracks, graded). There is no "test": BEIR calls dl19 so, and other sets mean other queries by it.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.benchmarks import benchmark_dir
from retrieval_jax.data.file_task import files_fingerprint
from retrieval_jax.data.judged_pairs import judged_pairs
from retrieval_jax.data.lines import found_file
from retrieval_jax.data.msmarco import read_collection, read_queries

NAME = "msmarco_passage"
COLLECTION = "collection.tsv"


class Split(NamedTuple):
  """Its files, and the set of scripts/download_msmarco.py that has them."""

  queries: str
  qrels: str
  downloaded_as: str = "passage"


SPLITS: Mapping[str, Split] = {
  "train": Split("queries.train.tsv", "qrels.train.tsv"),
  "dev_small": Split("queries.dev.small.tsv", "qrels.dev.small.tsv"),
  "dl19": Split("msmarco-test2019-queries.tsv", "2019qrels-pass.txt", "dl19"),
  "dl20": Split("msmarco-test2020-queries.tsv", "2020qrels-pass.txt", "dl20"),
}

INFO = features.TaskInfo(
  metrics=("mrr@10", "ndcg@10", "recall@100", "recall@1000"),
  query_length=64,  # as T5X Retrieval trains on it
  passage_length=256,
  template="{text}",
  source="MS MARCO passage ranking v1 and TREC DL 2019 and 2020; non-commercial research: https://microsoft.github.io/msmarco/",
  # Of the unpacked files as several public lists have them; the archives are checked when they are downloaded.
  checksums={
    COLLECTION: "31e42eeac3a3ea1b75c689c483be4484",
    "queries.dev.small.tsv": "4621c583f1089d223db228a4f95a05d1",
    "qrels.dev.small.tsv": "38a80559a561707ac2ec0f150ecd1e8a",
    "qrels.train.tsv": "733fb9fe12d93e497f7289409316eccf",
    "msmarco-test2019-queries.tsv.gz": "eda71eccbe4d251af83150abe065368c",
    "msmarco-test2020-queries.tsv.gz": "00a406fb0d14ed3752d70d1e4eb98600",
    "2019qrels-pass.txt": "2f4be390198da108f6845c822e5ada14",
    "2020qrels-pass.txt": "0355ccee7509ac0463e8278186cdd8d1",
  },
  counts={features.CORPUS: 8_841_823, "train": 502_939, "dev_small": 6_980, "dl19": 43, "dl20": 54},
)
# TREC's grade 1 is "on the topic": it counts for nDCG alone.
GRADED = INFO._replace(metrics=("ndcg@10", "mrr@10", "map", "recall@100", "recall@1000"), relevant_from=2)


def _folder(downloaded_as: str = "passage") -> pathlib.Path:
  get = f"python scripts/download_msmarco.py --names {downloaded_as}"
  return benchmark_dir(NAME, "msmarco-passage", "msmarco", get=get)


def read(split: str) -> Iterator[features.Example]:
  """Yields the judged pairs of a split, or all passages for "corpus"."""
  folder = _folder()
  if split == features.CORPUS:
    return read_collection(found_file(folder, COLLECTION))
  found = SPLITS[split]
  queries, qrels = found_file(folder, found.queries), found_file(folder, found.qrels)
  return judged_pairs(read_queries(queries), qrels, where=f"{NAME}, split {split}")


def files() -> list[pathlib.Path]:
  """Returns the collection and those files of queries and judgements that are there."""
  folder = _folder()
  names = [name for split in SPLITS.values() for name in (split.queries, split.qrels)]
  there = [name for name in names if any(folder.glob(f"{name}*"))]
  return [found_file(folder, name) for name in (COLLECTION, *there)]


features.register(
  features.TextTask(
    name=NAME,
    splits=(*SPLITS, features.CORPUS),
    read=read,
    fingerprint=lambda: files_fingerprint(files()),
    info=INFO,
    files=files,
    split_info={"dl19": GRADED, "dl20": GRADED},
    corpus_fingerprint=lambda split: files_fingerprint([found_file(_folder(), COLLECTION)], split),
  )
)
