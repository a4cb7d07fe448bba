"""The Task pydocs: through seqio once, then from the cache without TensorFlow."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from retrieval_jax import paths
from retrieval_jax.data import pydocs
from retrieval_jax.data.dataset import TaskSource, load, make_batch
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import SentencePiece, train_sentencepiece


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> TextInputs:
  path = tmp_path_factory.mktemp("vocabulary") / "pydocs.model"
  queries = [pair.query for pair in pydocs.read_pairs("train", paths.cache_dir())]
  train_sentencepiece(queries, path, vocab_size=1000)
  return TextInputs(SentencePiece(str(path)), query_length=16, passage_length=32)


def test_load_and_batch(inputs: TextInputs):
  data = load(TaskSource("pydocs", "test"), inputs)
  pairs = {split: list(pydocs.read_pairs(split)) for split in pydocs.SPLITS}
  assert list(data.queries.ids) == [pair.name for pair in pairs["test"]]
  assert list(data.passages.ids) == sorted(pair.name for split in pydocs.SPLITS for pair in pairs[split])
  batch = make_batch(data, np.array([0, 1, -1]), seed=0, epoch=0)
  assert data.passages.ids[int(batch.positives[1, 0])] == data.queries.ids[1]
  assert data.passages.texts[data.passages.row_of(pairs["dev"][3].name)] == pairs["dev"][3].passage
  assert data.relevance.width == 1


def test_a_warm_load_needs_no_tensorflow(inputs: TextInputs):
  first = load(TaskSource("pydocs", "test"), inputs)
  script = f"""
    import sys
    from retrieval_jax.data.dataset import TaskSource, load
    from retrieval_jax.data.text_inputs import TextInputs
    from retrieval_jax.data.vocabularies import SentencePiece
    data = load(TaskSource("pydocs", "test"), TextInputs(SentencePiece({inputs.vocabulary.path!r}), 16, 32))
    assert "tensorflow" not in sys.modules and "seqio" not in sys.modules
    print(data.fingerprint)
  """
  run = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True
  )
  assert run.stdout.strip() == first.fingerprint
  assert "tokenise" not in run.stderr
