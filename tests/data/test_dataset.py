"""load and make_batch on literal data: rows, identities, masks, caches, two processes, mistakes."""

import logging
import multiprocessing
import pathlib
import shutil
from collections import Counter

import numpy as np
import pytest
from toy_source import ListSource

from retrieval_jax.data import features, token_store
from retrieval_jax.data.dataset import RetrievalData, load, make_batch
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.errors import UserError


@pytest.fixture
def data(toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path) -> RetrievalData:
  return load(toy, inputs, cache=tmp_path)


def test_rows_come_in_the_order_of_the_source(data: RetrievalData):
  assert (data.name, data.split) == ("toy", "train")
  assert list(data.queries.ids) == ["q1", "q2", "q3"]
  assert list(data.passages.ids) == ["p1", "p2", "p3", "p4"]
  assert data.passages.texts[2] == "a green a"
  assert data.passages.row_of("p4") == 3
  assert data.examples.tolist() == [0, 1]  # q3 has no positive
  assert data.num_examples == 2
  assert [column.tolist() for column in data.relevance.row(1)] == [[2, 0], [1, 0]]


def test_tokens_are_gathered_by_row(data: RetrievalData):
  assert data.queries.gather([1, -1]).tolist() == [[2, 10, 13, 3], [0, 0, 0, 0]]
  assert data.passages.gather(np.array([3])).tolist() == [[2, 6, 3, 0, 0, 0, 0, 0]]
  assert data.passages.lengths.tolist() == [5, 5, 5, 3]
  assert data.passages.gather([0]).dtype == np.int32
  assert np.load(data.passages.folder / "tokens.npy").dtype == np.uint16
  with pytest.raises(IndexError, match=r"rows 0\.\.4; expected -1 or 0\.\.3"):
    data.passages.gather([0, 4])


def test_a_padding_word_in_a_text_is_text(inputs: TextInputs, tmp_path: pathlib.Path):
  pairs = [features.pair("q1", "red", "p1", "a [PAD] b"), features.pair("q2", "blue", "p2", "")]
  data = load(ListSource({"train": pairs}), inputs, cache=tmp_path)
  assert data.passages.gather([0]).tolist() == [[2, 4, 1, 1, 1, 5, 3, 0]]  # "[", "pad", "]"
  assert data.passages.lengths.tolist() == [7, 2]
  assert token_store.row_lengths(np.array([[0, 0, 0], [0, 7, 0], [7, 0, 7]])).tolist() == [0, 2, 3]


def test_equal_texts_are_one_identity(inputs: TextInputs, tmp_path: pathlib.Path):
  pairs = [
    features.pair("q1", "red", "p1", "a"),
    features.pair("q2", "RED", "p2", "b"),
    features.pair("q3", "blue", "p3", "A"),
  ]
  data = load(ListSource({"train": pairs}), inputs, cache=tmp_path)
  assert data.queries.identity.tolist() == [0, 0, 2]
  assert data.passages.identity.tolist() == [0, 1, 0]
  batch = make_batch(data, np.array([2, 1]), seed=0, epoch=0)
  assert batch.query_rows.tolist() == [2, 0]
  assert batch.passage_rows.tolist() == [0, 1]
  assert batch.positives.tolist() == [[0], [1]]


def test_padding_has_weight_0_and_no_rows(data: RetrievalData):
  batch = make_batch(data, np.array([1, -1, 0]), seed=0, epoch=0)
  assert batch.weights.tolist() == [1.0, 0.0, 1.0]
  assert batch.query_rows.tolist() == [1, -1, 0]
  assert batch.passage_rows[:2].tolist() == [2, -1]
  assert batch.positives.tolist() == [[2, -1], [-1, -1], [0, 1]]
  assert not np.asarray(batch.query_tokens)[1].any()
  assert not np.asarray(batch.passage_tokens)[1].any()
  assert [np.asarray(column).dtype for column in batch[:6]] == [np.int32] * 5 + [np.float32]
  assert all(isinstance(column, np.ndarray) for column in batch[:6])


def test_a_batch_of_padding_alone(data: RetrievalData):
  batch = make_batch(data, np.array([-1, -1]), seed=0, epoch=0)
  assert not batch.weights.any()
  assert not np.asarray(batch.passage_tokens).any()


def test_indices_out_of_range(data: RetrievalData):
  with pytest.raises(IndexError, match=r"indices 0\.\.2; expected -1 or 0\.\.1"):
    make_batch(data, np.array([0, 2]), seed=0, epoch=0)


def test_the_drawn_positive_depends_on_seed_epoch_and_query_alone(inputs: TextInputs, tmp_path: pathlib.Path):
  pairs = [features.pair(f"q{q}", f"red {q}", f"p{p}", "abcd"[p]) for q in range(40) for p in range(4)]
  data = load(ListSource({"train": pairs}), inputs, cache=tmp_path)
  everything = np.arange(40)
  whole = make_batch(data, everything, seed=3, epoch=1).passage_rows
  backwards = np.concatenate(
    [make_batch(data, np.array([i]), seed=3, epoch=1).passage_rows for i in everything[::-1]]
  )
  assert whole.tolist() == backwards[::-1].tolist()
  assert whole.tolist() != make_batch(data, everything, seed=3, epoch=2).passage_rows.tolist()
  assert whole.tolist() != make_batch(data, everything, seed=4, epoch=1).passage_rows.tolist()
  drawn = Counter(
    p for e in range(100) for p in make_batch(data, everything, seed=0, epoch=e).passage_rows.tolist()
  )
  assert sorted(drawn) == [0, 1, 2, 3]
  assert max(abs(count - 1000) for count in drawn.values()) < 4 * np.sqrt(4000 * 0.25 * 0.75)


def test_a_negative_seed_is_a_seed(data: RetrievalData):
  assert make_batch(data, np.array([0]), seed=-1, epoch=0).passage_rows[0] in (0, 1)


def test_a_corpus_split_holds_the_passages_of_every_split(
  inputs: TextInputs, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  corpus = [features.passage(f"p{i}", f"text {i}") for i in range(150)]
  train = [features.pair(f"q{i}", "red", f"p{i}", "ignored") for i in range(149, 40, -1)]
  missing = [*train, features.pair("q0", "blue", "gone", "ignored")]
  data = {"train": train, "test": missing, "corpus": corpus}
  first = load(ListSource(data, "train"), inputs, cache=tmp_path)
  with caplog.at_level(logging.WARNING):
    second = load(ListSource(data, "test"), inputs, cache=tmp_path)
  assert first.passages.num_rows == second.passages.num_rows == 150
  assert first.passages.fingerprint == second.passages.fingerprint
  assert first.relevance.row(0)[0].tolist() == [149]
  assert second.num_examples == len(train)
  assert second.queries.num_rows == len(train) + 1
  assert (
    "1 of 110 judgements name passages that the corpus lacks ('gone'): nothing can find these" in caplog.text
  )
  assert not list(tmp_path.glob("texts/*/wanted*"))


def test_a_corpus_of_another_version_is_refused(inputs: TextInputs, tmp_path: pathlib.Path):
  pairs = [features.pair("q1", "red", "p1", ""), features.pair("q2", "red", "gone", "")]
  source = ListSource({"train": pairs, "corpus": [features.passage("p1", "a")]})
  with pytest.raises(
    UserError, match=r"1 of 2 judgements .* \('gone'\)\. Above 1% the corpus is of another version"
  ):
    load(source, inputs, cache=tmp_path)


def test_a_warm_cache_does_not_read_the_source(toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path):
  log = tmp_path / "log"
  first = load(toy._replace(log=log), inputs, cache=tmp_path)
  second = load(toy._replace(log=log), inputs, cache=tmp_path)
  assert log.read_text() == "train\n"
  assert first.fingerprint == second.fingerprint
  np.testing.assert_array_equal(first.passages.gather([0, 3]), second.passages.gather([0, 3]))


def test_another_length_or_prefix_tokenises_anew_without_reading_again(
  toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path
):
  source = toy._replace(log=tmp_path / "log")
  plain = load(source, inputs, cache=tmp_path)
  longer = load(source, inputs._replace(query_length=6), cache=tmp_path)
  prefixed = load(source, inputs._replace(passage_prefix="e "), cache=tmp_path)
  assert source.log is not None
  assert source.log.read_text() == "train\n"
  assert longer.queries.length == 6
  assert longer.passages.fingerprint == plain.passages.fingerprint
  assert prefixed.passages.gather([3]).tolist() == [[2, 8, 6, 3, 0, 0, 0, 0]]
  assert prefixed.passages.texts[3] == "c"
  assert len({plain.fingerprint, longer.fingerprint, prefixed.fingerprint}) == 3


def test_another_source_version_is_read_again(toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path):
  first = load(toy, inputs, cache=tmp_path)
  changed = {"train": [features.pair("q9", "blue", "p9", "d")]}
  second = load(toy._replace(data=changed, version="2"), inputs, cache=tmp_path)
  assert second.fingerprint != first.fingerprint
  assert list(second.queries.ids) == ["q9"]


def test_another_format_version_is_another_store(toy, inputs, tmp_path: pathlib.Path, monkeypatch):
  first = load(toy, inputs, cache=tmp_path)
  monkeypatch.setattr(token_store, "FORMAT_VERSION", token_store.FORMAT_VERSION + 1)
  assert load(toy, inputs, cache=tmp_path).queries.fingerprint != first.queries.fingerprint


@pytest.mark.parametrize("name", ["tokens.npy", "identity.npy", "manifest.json"])
def test_a_damaged_store_is_made_again(toy, inputs, tmp_path: pathlib.Path, caplog, name: str):
  first = load(toy, inputs, cache=tmp_path)
  path = first.passages.folder / name
  path.write_bytes(path.read_bytes()[:-9])
  with caplog.at_level(logging.WARNING):
    second = load(toy, inputs, cache=tmp_path)
  assert [record.levelname for record in caplog.records] == ["WARNING"]
  assert "is damaged" in caplog.text
  assert second.passages.gather([3]).tolist() == [[2, 6, 3, 0, 0, 0, 0, 0]]


def test_many_chunks_equal_one(toy, inputs, tmp_path: pathlib.Path, monkeypatch):
  whole = load(toy, inputs, cache=tmp_path / "one")
  monkeypatch.setattr(token_store, "CHUNK", 3)
  parts = load(toy, inputs, cache=tmp_path / "many")
  for name in ("tokens", "lengths", "identity"):
    np.testing.assert_array_equal(
      np.load(whole.passages.folder / f"{name}.npy"), np.load(parts.passages.folder / f"{name}.npy")
    )


def load_in_a_process(source: ListSource, path: str, cache: pathlib.Path, barrier) -> None:
  inputs = TextInputs(WordPiece(path), query_length=4, passage_length=8)
  barrier.wait()
  data = load(source, inputs, cache=cache)
  assert data.passages.gather([3]).tolist() == [[2, 6, 3, 0, 0, 0, 0, 0]]


def test_two_processes_load_at_once(toy: ListSource, word_piece: WordPiece, tmp_path: pathlib.Path):
  spawn = multiprocessing.get_context("spawn")
  barrier = spawn.Barrier(2)
  source = toy._replace(log=tmp_path / "log")
  arguments = (source, word_piece.path, tmp_path / "cache", barrier)
  workers = [spawn.Process(target=load_in_a_process, args=arguments) for _ in range(2)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join(120)
  assert [worker.exitcode for worker in workers] == [0, 0]
  assert (tmp_path / "log").read_text() == "train\n"
  folders = [path.name for kind in ("texts", "tokens") for path in (tmp_path / "cache" / kind).iterdir()]
  assert len([name for name in folders if not name.startswith(".")]) == 3


@pytest.mark.parametrize(
  "examples, message",
  [
    ([], "toy, split train, queries: no rows. Check the path"),
    (
      [features.pair("q", "red", "p", "a", 0)],
      r"no query has a passage of relevance > 0.*\(1 judgements, all <= 0\)",
    ),
    (
      [features.pair("q", "red", "p", "a"), features.pair("q", "blue", "p", "a")],
      "queries: the id 'q' comes with two texts: 'red' and 'blue'",
    ),
    (
      [features.pair("q", "red", "p", "a"), features.pair("q", "red", "p", "b")],
      "passages: the id 'p' comes with two texts: 'a' and 'b'",
    ),
  ],
)
def test_bad_data_stop_with_the_reason(examples, message: str, inputs: TextInputs, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match=message):
    load(ListSource({"train": examples}), inputs, cache=tmp_path)
  assert (
    not [path for path in tmp_path.glob("tokens/*") if not path.name.startswith(".")]
    or "relevance" in message
  )


def test_an_unknown_split_lists_those_there_are(toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path):
  for split in ("validation", "corpus"):
    with pytest.raises(UserError, match=f"toy has no split '{split}'; its splits of pairs: train"):
      load(toy._replace(split=split), inputs, cache=tmp_path)


def test_titles_are_joined_by_the_models_template(inputs: TextInputs, tmp_path: pathlib.Path):
  pairs = [
    features.pair("q1", "red", "p1", "a b", title="c"),
    features.pair("q2", "blue", "p2", "d"),
    features.pair("q3", "green", "p3", "", title="e"),
  ]
  source = ListSource({"train": pairs}, log=tmp_path / "log")
  data = load(source, inputs, cache=tmp_path)
  assert list(data.passages.texts) == ["c a b", "d", "e"]
  assert data.passages.gather([0, 1, 2])[:, :6].tolist() == [
    [2, 6, 4, 5, 3, 0],
    [2, 7, 3, 0, 0, 0],
    [2, 8, 3, 0, 0, 0],
  ]
  other = load(
    source, inputs._replace(passage_template="{text} ? {title}", passage_prefix="e "), cache=tmp_path
  )
  assert other.passages.gather([0, 1]).tolist() == [[2, 8, 4, 5, 13, 6, 3, 0], [2, 8, 7, 3, 0, 0, 0, 0]]
  assert list(other.passages.texts) == list(data.passages.texts)
  assert other.queries.fingerprint == data.queries.fingerprint
  assert source.log is not None
  assert source.log.read_text() == "train\n"


def test_a_template_does_not_concern_data_without_titles(
  toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path
):
  first = load(toy, inputs, cache=tmp_path)
  second = load(toy, inputs._replace(passage_template="{title}: {text}"), cache=tmp_path)
  assert first.fingerprint == second.fingerprint


def test_text_inputs_describe_themselves(inputs: TextInputs):
  assert inputs.describe()["passage_length"] == 8
  assert inputs.fingerprint != inputs._replace(query_prefix="q: ").fingerprint
  assert inputs.query_tokens(["red ?"]).tolist() == [[2, 9, 13, 3]]
  assert inputs._replace(passage_prefix="e ").passage_tokens([""]).tolist() == [[2, 8, 3, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
  "name", ["relevance.npz", "queries/ids.npy", "queries/texts.npy", "queries/order.npy", "tokens.npy"]
)
@pytest.mark.parametrize("start", [0, 40])
def test_damage_that_keeps_the_size_is_named(
  toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path, name: str, start: int
):
  load(toy, inputs, cache=tmp_path)
  path = next(path for path in tmp_path.glob("*/*/**/*.np?") if str(path).endswith(name))
  sound = path.read_bytes()
  path.write_bytes(sound[:start] + bytes(len(sound) - start))
  with pytest.raises(UserError, match=f"{path.parent} is damaged .* delete it") as raised:
    load(toy, inputs, cache=tmp_path)
  assert str(tmp_path) in str(raised.value)
  shutil.rmtree(path.parent)
  load(toy, inputs, cache=tmp_path)
