"""A tiny retrieval data set with titles, and tiny dual encoders that can tell its texts apart."""

import pathlib
from typing import NamedTuple

import jax
import numpy as np

from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.metrics.ranking import evaluate_ranking
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.retriever import Retriever

TITLES = ["cats", "dogs", "", "red birds", "fish", "", "old trees", "cats and dogs", "a river", "stones"]
TEXTS = [
  "they purr and sleep",
  "they bark at night",
  "the red house by the river",
  "they sing in old trees",
  "they swim in the river",
  "old stones in the house",
  "they sleep in the night",
  "they bark and purr",
  "red fish swim in it",
  "birds sing by the house",
]
CORPUS = {
  f"d{i}": {"title": title, "text": text} for i, (title, text) in enumerate(zip(TITLES, TEXTS, strict=True))
}
QUERIES = {"q0": "who purr at night", "q1": "fish in the river", "q2": "old house", "q3": "birds that sing"}
QRELS = {
  "q0": {"d0": 2, "d7": 1},
  "q1": {"d4": 1, "d8": 2, "d2": 1},
  "q2": {"d5": 1, "d2": 2},
  "q3": {"d3": 1},
}
EXTRA_WORDS = ["who", "that", "query", "passage", ":", "|", "##s"]


class Ranking(NamedTuple):
  """What this package computes itself: scores [q, c] and nDCG@10, its mean and its value for each query."""

  scores: np.ndarray
  mean: float
  per_query: dict[str, float]


def write_vocabulary(path: pathlib.Path) -> WordPiece:
  words = sorted({word for text in (*TITLES, *TEXTS, *QUERIES.values()) for word in text.split()})
  path.write_text(
    "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *EXTRA_WORDS, *words]) + "\n", encoding="utf-8"
  )
  return WordPiece(str(path))


def make_model(
  vocabulary: WordPiece, *, seed: int = 0, normalize: bool = True, **settings: str
) -> DualEncoder:
  """Two different random towers, so that a text through the wrong one shows; settings: of TextInputs."""
  encoder = BertEncoder(num_layers=1, num_heads=2, embed_dim=16, mlp_dim=16, max_positions=32)
  tower = Tower(encoder, vocab_size=64, normalize=normalize)
  pair = dual_encoder(tower, sharing="ade_ste")
  inputs = TextInputs(vocabulary, query_length=8, passage_length=16, **settings)
  return DualEncoder(
    Retriever(pair, inputs), jax.jit(pair.init)(jax.random.key(seed)), source="random numbers"
  )


def our_ranking(model: DualEncoder) -> Ranking:
  """Scores, and nDCG@10 of them by our own metrics; no two scores of a query are so close that rounding decides."""
  passages = [(passage["title"], passage["text"]) for passage in CORPUS.values()]
  scores = model.similarity(model.encode_queries(list(QUERIES.values())), model.encode_passages(passages))
  assert np.diff(np.sort(scores, axis=1), axis=1).min() > 1e-5
  names = list(CORPUS)
  qrels = [([names.index(d) for d in grades], list(grades.values())) for grades in QRELS.values()]
  means, values, _, _ = evaluate_ranking(np.argsort(-scores, axis=1), qrels=qrels, metrics=["ndcg@10"])
  return Ranking(scores, means["ndcg@10"], dict(zip(QUERIES, values["ndcg@10"].tolist(), strict=True)))
