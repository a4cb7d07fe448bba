"""The Tasks `beir_<name>`: the 18 sets of BEIR, and CQADupStack's 12 forums in place of the whole.

Names have "_" where BEIR's have "-". The mean over the forums, and over all sets, is a group (data/benchmarks.py).
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.beir import beir_files, beir_splits, read_beir_corpus, read_beir_folder
from retrieval_jax.data.benchmarks import FORUMS, benchmark_dir
from retrieval_jax.data.file_task import files_fingerprint
from retrieval_jax.data.lines import found_file
from retrieval_jax.errors import UserError

METRICS = ("ndcg@10", "mrr@10", "recall@100")
SELF_MATCHES = ("arguana", "quora")  # their queries are passages of the corpus, under the same ids
SOURCE = "BEIR, under the licences of the sets' owners: https://github.com/beir-cellar/beir"


class Spec(NamedTuple):
  """A set: its folder, its splits, and the published numbers of queries judged in test and of passages (None: rounded)."""

  folder: str
  queries: int
  passages: int | None = None
  splits: Sequence[str] = ("test",)


ALL_SPLITS = ("train", "dev", "test")
SETS: Mapping[str, Spec] = {
  "trec_covid": Spec("trec-covid", 50, 171_332),
  "nfcorpus": Spec("nfcorpus", 323, 3_633, ALL_SPLITS),
  "bioasq": Spec("bioasq", 500, None, ("train", "test")),
  "nq": Spec("nq", 3_452, 2_681_468, ("train", "test")),
  "hotpotqa": Spec("hotpotqa", 7_405, 5_233_329, ALL_SPLITS),
  "fiqa": Spec("fiqa", 648, 57_638, ALL_SPLITS),
  "signal1m": Spec("signal1m", 97),
  "trec_news": Spec("trec-news", 57),
  "robust04": Spec("robust04", 249),
  "arguana": Spec("arguana", 1_406, 8_674),
  "webis_touche2020": Spec("webis-touche2020", 49, 382_545),
  "quora": Spec("quora", 10_000, 522_931, ("dev", "test")),
  "dbpedia_entity": Spec("dbpedia-entity", 400, 4_635_922, ("dev", "test")),
  "scidocs": Spec("scidocs", 1_000, 25_657),
  "fever": Spec("fever", 6_666, 5_416_568, ALL_SPLITS),
  "climate_fever": Spec("climate-fever", 1_535, 5_416_593),
  "scifact": Spec("scifact", 300, 5_183, ("train", "test")),
}
FORUM_QUERIES = (699, 1_570, 1_595, 885, 804, 1_039, 876, 652, 2_906, 1_072, 506, 541)
CQADUPSTACK: Mapping[str, Spec] = {
  f"cqadupstack_{forum}": Spec(f"cqadupstack/{forum}", queries)
  for forum, queries in zip(FORUMS, FORUM_QUERIES, strict=True)
}


def task(name: str, spec: Spec) -> features.TextTask:
  """Returns the Task of one set."""
  # Where a set is withheld, this says by whom.
  get = f"python scripts/download_beir.py --names {spec.folder.partition('/')[0]}"

  def folder() -> pathlib.Path:
    underscored = spec.folder.replace("-", "_")
    places = (f"beir/{spec.folder}", spec.folder, f"beir/{underscored}", underscored)
    return benchmark_dir(*dict.fromkeys(places), get=get)

  def read(split: str) -> Iterator[features.Example]:
    found = folder()
    if split == features.CORPUS:
      return read_beir_corpus(found)
    if split not in beir_splits(found):
      raise UserError(
        f"beir_{name}: {found} has judgements for {', '.join(beir_splits(found))}, and none for {split}: put "
        f"{split}.tsv into {found}/qrels."
      )
    return read_beir_folder(found, split)

  counts = {"test": spec.queries} | ({} if spec.passages is None else {features.CORPUS: spec.passages})
  return features.TextTask(
    name=f"beir_{name}",
    splits=(*spec.splits, features.CORPUS),
    read=read,
    fingerprint=lambda: files_fingerprint(beir_files(folder())),
    info=features.TaskInfo(
      metrics=METRICS,
      drop_identical=name in SELF_MATCHES,
      query_length=512 if name == "arguana" else 64,  # its queries are whole arguments
      passage_length=512,
      template="{title} {text}",
      source=SOURCE,
      counts=counts,
    ),
    files=lambda: beir_files(folder()),
    corpus_fingerprint=lambda split: files_fingerprint([found_file(folder(), "corpus.jsonl")], split),
  )


for _name, _spec in {**SETS, **CQADUPSTACK}.items():
  features.register(task(_name, _spec))
