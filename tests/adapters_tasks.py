"""The tiny data set as tasks of MTEB: retrieval, reranking and text similarity. Needs the packages mteb and datasets."""

from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

from tests.adapters_corpus import CORPUS, QRELS, QUERIES, TEXTS


def metadata(name: str, kind: str, main_score: str) -> TaskMetadata:
  return TaskMetadata(
    name=name,
    type=kind,
    main_score=main_score,
    description="Ten passages and four queries.",
    dataset={"path": "none/none", "revision": "none"},
    category="t2t",
    eval_splits=["test"],
    eval_langs=["eng-Latn"],
    reference=None,
    date=None,
    domains=[],
    task_subtypes=[],
    license=None,
    annotations_creators=None,
    dialect=None,
    sample_creation=None,
    bibtex_citation="",
    modalities=["text"],
  )


def split_data(top_ranked: dict[str, list[str]] | None) -> RetrievalSplitData:
  return RetrievalSplitData(
    corpus=Dataset.from_list([{"id": name, **passage} for name, passage in CORPUS.items()]),
    queries=Dataset.from_list([{"id": name, "text": text} for name, text in QUERIES.items()]),
    relevant_docs=QRELS,
    top_ranked=top_ranked,
  )


class TinyRetrieval(AbsTaskRetrieval):
  metadata = metadata("TinyRetrieval", "Retrieval", "ndcg_at_10")

  def load_data(self, num_proc: int | None = None, **_: Any) -> None:
    self.dataset = {"default": {"test": split_data(None)}}
    self.data_loaded = True


class TinyReranking(AbsTaskRetrieval):
  """The same, of candidates: all passages, the last first."""

  metadata = metadata("TinyReranking", "Reranking", "ndcg_at_10")

  def load_data(self, num_proc: int | None = None, **_: Any) -> None:
    self.dataset = {"default": {"test": split_data({query: list(CORPUS)[::-1] for query in QUERIES})}}
    self.data_loaded = True


class TinySimilarity(AbsTaskSTS):
  """Every text with the next one, rated 0, 1, 2, ..."""

  metadata = metadata("TinySimilarity", "STS", "cosine_spearman")
  max_score = len(TEXTS)

  def load_data(self, num_proc: int | None = None, **_: Any) -> None:
    pairs = {"sentence1": TEXTS[:-1], "sentence2": TEXTS[1:], "score": list(range(len(TEXTS) - 1))}
    self.dataset = DatasetDict({"test": Dataset.from_dict(pairs)})
    self.data_loaded = True
