"""The encoder: few compilations, the values of one by one, whatever the spans and the devices; memory of one span."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax import encoding
from retrieval_jax.compilations import Compilations
from retrieval_jax.encoding import Encoder, RaggedRows
from retrieval_jax.errors import UserError
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner

MODEL = dual_encoder(Tower(BertEncoder(1, 2, 8, 16, max_positions=64), vocab_size=50))


@pytest.fixture(scope="module")
def params():
  return jax.jit(MODEL.init)(jax.random.key(0))


def rows(count: int, longest: int, seed: int = 0) -> RaggedRows:
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, longest + 1, count)
  return RaggedRows([rng.integers(1, 50, n).astype(np.int32) for n in lengths], longest)


def test_nothing_to_encode(params):
  encoder = Encoder(MODEL, params, partitioner())
  assert encoder.queries(RaggedRows([], 16)).shape == (0, 8)


@pytest.mark.parametrize("count", [1, 64])
def test_bucketed_equals_one_by_one_unpadded(params, count):
  tokens = rows(count, 40)
  got = Encoder(MODEL, params, partitioner(), tokens_per_batch=256).passages(tokens)
  encode = jax.jit(MODEL.encode_passages)
  for row in range(0, count, 9):
    assert_allclose(got[row], encode(params, tokens.tokens[row][None])[0], atol=1e-5, err_msg=f"{row}")


def test_no_more_compilations_than_shapes(params):
  encoder = Encoder(MODEL, params, partitioner(), tokens_per_batch=512)
  with Compilations() as compilations:
    for count in (1, 3, 9, 20, 70, 200):
      for seed in range(2):
        encoder.queries(rows(count, 32, seed))
  shapes = encoder.shapes(32)
  assert shapes == [(32, 16), (8, 16), (16, 32), (8, 32)]
  assert compilations.count <= len(shapes)


def test_one_tower_compiles_once_for_both_sides(params):
  """The width is this test's own, so that nothing was compiled before."""
  model = dual_encoder(Tower(BertEncoder(1, 2, 12, 16, max_positions=64), vocab_size=50))
  two = dual_encoder(model.query_tower, sharing="ade")
  tokens = rows(8, 16)
  for pair, expected in ((model, 1), (two, 2)):
    encoder = Encoder(pair, jax.jit(pair.init)(jax.random.key(0)), partitioner())
    with Compilations() as compilations:
      query, passage = encoder.queries(tokens), encoder.passages(tokens)
    assert compilations.count == expected
    assert (np.abs(query - passage).max() < 1e-6) == (expected == 1)


def test_an_unknown_dtype_names_its_setting(params):
  encoder = Encoder(MODEL, params, partitioner(), dtype="bfloat61")
  with pytest.raises(
    UserError, match=r"ENCODE_DTYPE='bfloat61': expected 'float32' or 'bfloat16'.*did you mean"
  ):
    encoder.queries(rows(1, 8))


def test_embeddings_that_are_not_finite_name_the_text(params):
  broken = jax.tree.map(lambda x: x, params)
  broken["token_embedder"] = {"embedding": params["token_embedder"]["embedding"].at[7].set(np.nan)}
  tokens = RaggedRows([np.array([1, 2]), np.array([3, 7])], 16)
  with pytest.raises(
    UserError, match=r"encode passages: the embedding of text 1 is not finite \(1 of a batch of 2\)"
  ):
    Encoder(MODEL, broken, partitioner()).passages(tokens)


class Watched(RaggedRows):
  """Rows that remember which were asked for: [rows] of each batch, without padding."""

  asked: list  # set by `watched`

  def gather(self, rows):
    self.asked.append(rows[rows >= 0])
    return super().gather(rows)


def watched(tokens: RaggedRows) -> Watched:
  found = Watched(tokens.tokens, tokens.length)
  found.asked = []
  return found


def spans_of(count: int, size: int) -> list[range]:
  return [range(start, min(start + size, count)) for start in range(0, count, size)]


@pytest.fixture(scope="module")
def reference(params):
  """150 rows and their embeddings on one device in one span."""
  tokens = rows(150, 40)
  one = partitioner(devices=jax.devices()[:1])
  return tokens, Encoder(MODEL, params, one, tokens_per_batch=256).passages(tokens)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("size", [7, 64, 150])
def test_sharded_order_and_values_depend_on_neither_spans_nor_devices(params, reference, size, devices):
  tokens, expected = reference
  mesh = partitioner(devices=jax.devices()[:devices])
  encoder = Encoder(MODEL, params, mesh, tokens_per_batch=256)
  parts = list(encoder.spans("passage", tokens, spans_of(150, size)))
  assert [len(part) for part in parts] == [len(span) for span in spans_of(150, size)]
  assert_allclose(np.concatenate(parts), expected, atol=1e-6)
  nearest = np.argmax(np.concatenate(parts) @ expected.T, axis=1)
  assert len(set(nearest)) > 100, "rows must differ for their order to be seen"


def test_some_spans_alone(params, reference):
  tokens, expected = reference
  encoder = Encoder(MODEL, params, partitioner(devices=jax.devices()[:1]), tokens_per_batch=256)
  parts = list(encoder.spans("passage", tokens, [range(64, 128), range(30, 30), range(140, 150)]))
  assert [part.shape for part in parts] == [(64, 8), (0, 8), (10, 8)]
  assert_allclose(np.concatenate(parts), np.concatenate([expected[64:128], expected[140:]]), atol=1e-6)


def test_spans_compile_nothing_that_one_span_does_not(params):
  """The width is this test's own, so that nothing was compiled before."""
  model = dual_encoder(Tower(BertEncoder(1, 2, 20, 16, max_positions=64), vocab_size=50))
  mesh = partitioner(devices=jax.devices()[:1])
  encoder = Encoder(model, jax.jit(model.init)(jax.random.key(0)), mesh, tokens_per_batch=512)
  with Compilations() as compilations:
    for size in (7, 33, 64, 150):
      list(encoder.spans("passage", rows(150, 32, seed=size), spans_of(150, size)))
  assert compilations.count == len(encoder.shapes(32)) == 4


def test_memory_is_that_of_one_span(params):
  """When a span is there, nothing beyond the next span's first batch was gathered, and nobody holds the one before."""
  import weakref

  tokens = watched(rows(60, 16))
  encoder = Encoder(MODEL, params, partitioner(devices=jax.devices()[:1]), tokens_per_batch=64)
  spans = spans_of(60, 20)
  parts, last = encoder.spans("passage", tokens, spans), None
  for number, span in enumerate(spans):
    output = next(parts)
    assert last is None or last() is None
    last = weakref.ref(output)
    del output
    seen = np.concatenate(tokens.asked)
    ahead = seen[seen >= span.stop]
    assert sorted(seen[seen < span.stop]) == list(range(span.stop))
    assert len(ahead) == (4 if number < 2 else 0)
    assert (ahead < span.stop + 20).all()
  assert max(len(asked) for asked in tokens.asked) <= 8


def test_longest_rows_of_a_span_first(params):
  tokens = watched(rows(64, 40))
  encoder = Encoder(MODEL, params, partitioner(devices=jax.devices()[:1]), tokens_per_batch=256)
  list(encoder.spans("passage", tokens, [range(64)]))
  lengths = tokens.lengths[np.concatenate(tokens.asked)]
  assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)


def test_the_bar_starts_from_what_is_done(params, monkeypatch, capfd):
  monkeypatch.setattr(encoding, "SHOWN_ROWS", 1)
  encoder = Encoder(MODEL, params, partitioner(devices=jax.devices()[:1]), tokens_per_batch=256)
  list(encoder.spans("passage", rows(40, 16), [range(30, 40)]))
  shown = capfd.readouterr().err
  assert "encode passages:  75%" in shown
  assert "30/40" in shown
  assert "encode passages: 100%" in shown
  assert "row/s]" in shown


def test_rows_without_tokens_are_encoded_and_counted(params):
  tokens = RaggedRows([np.array([], np.int32), np.array([3]), np.array([], np.int32)], 16)
  found = Encoder(MODEL, params, partitioner()).passages(tokens)
  assert found.shape == (3, 8)
  assert np.isfinite(found).all()
  assert_allclose(found[0], found[2])


def test_float16(params, reference):
  tokens, expected = reference
  encoder = Encoder(MODEL, params, partitioner(devices=jax.devices()[:1]), tokens_per_batch=256)
  (found,) = encoder.spans("passage", tokens, [range(150)], dtype="float16")
  assert found.dtype == np.float16
  assert_allclose(found, expected, atol=2.0**-11)  # half a unit in the last place below 1


def test_an_embedding_that_float16_cannot_hold_names_the_text(params):
  model = dual_encoder(Tower(BertEncoder(1, 2, 8, 16, max_positions=64), vocab_size=50, normalize=False))
  long = jax.tree.map(lambda x: x, params)
  long["encoder"] = jax.tree.map(lambda x: x * 1e6, params["encoder"])
  encoder = Encoder(model, long, partitioner())
  tokens = rows(3, 16)
  assert np.abs(encoder.passages(tokens)).max() > 65504
  with pytest.raises(
    UserError, match=r"the embedding of text \d is beyond the largest float16.*EMBEDDING_DTYPE='float32'"
  ):
    list(encoder.spans("passage", tokens, [range(3)], dtype="float16"))


def test_what_is_not_finite_stops_before_its_span_is_given_away(params):
  broken = jax.tree.map(lambda x: x, params)
  broken["token_embedder"] = {"embedding": params["token_embedder"]["embedding"].at[7].set(np.nan)}
  tokens = RaggedRows([np.array([n]) for n in (1, 2, 3, 4, 7, 5)], 16)
  parts = Encoder(MODEL, broken, partitioner()).spans("passage", tokens, spans_of(6, 2))
  assert len(next(parts)) == len(next(parts)) == 2
  with pytest.raises(UserError, match="the embedding of text 4 is not finite"):
    next(parts)


@pytest.mark.parametrize("tokens", [0, -5, 2.5, "64", True])
def test_a_batch_of_so_many_tokens_cannot_be(params, tokens):
  with pytest.raises(UserError, match=r"TOKENS_PER_BATCH=.*expected a whole number"):
    Encoder(MODEL, params, partitioner(), tokens_per_batch=tokens).passages(rows(2, 16))


def test_a_full_memory_names_the_setting(params, monkeypatch):
  def full(*_):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes")

  monkeypatch.setattr(encoding, "encode_program", lambda *_: full)
  encoder = Encoder(MODEL, params, partitioner(), tokens_per_batch=4096)
  with pytest.raises(UserError, match=r"TOKENS_PER_BATCH \(now 4,096\): try 2,048(.|\n)*99 bytes"):
    encoder.passages(rows(2, 16))
