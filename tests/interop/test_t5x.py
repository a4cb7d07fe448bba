"""Towers from T5X's parameters in every layout of names, and T5X checkpoints written from towers."""

import json
import pathlib
import resource
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax.errors import UserError
from retrieval_jax.interop import t5x, t5x_native
from retrieval_jax.interop.foreign import EncoderSpec, ForeignModel, ForeignTower, TextSpec, TowerSpec
from retrieval_jax.interop.report import Parameter, ParameterReport
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower

Arrays = dict[str, np.ndarray]

HEADS, HEAD_DIM, WIDTH, HIDDEN, VOCAB, OUT = 4, 8, 24, 40, 96, 16
LAYER_NAMES = (
  "pre_attention_layer_norm/scale",
  "attention/query/kernel",
  "attention/key/kernel",
  "attention/value/kernel",
  "attention/out/kernel",
  "pre_mlp_layer_norm/scale",
  "mlp/wi_0/kernel",
  "mlp/wi_1/kernel",
  "mlp/wo/kernel",
)


@pytest.fixture
def sde(oracles) -> Arrays:
  """Parameters of a tiny T5 1.1 dual encoder under T5X's names."""
  return of_params(np.load(oracles / "sde_t5_1_1_f32.npz"))


@pytest.fixture
def ade_spl(oracles) -> Arrays:
  """Another one with two encoders and one projection."""
  return of_params(np.load(oracles / "ade_spl_t5_1_1_f32.npz"))


def of_params(archive) -> Arrays:
  return {name.removeprefix("params/"): archive[name] for name in archive.files if name.startswith("params/")}


@pytest.fixture
def saved(tmp_path) -> Callable[[Arrays], pathlib.Path]:
  """Saves parameters as a T5X checkpoint and returns its folder."""

  def save(arrays: Arrays) -> pathlib.Path:
    folder = tmp_path / "given" / "checkpoint_7"
    folder.mkdir(parents=True)
    t5x_native.write(folder, arrays, step=7)
    return folder

  return save


def flat(tree, prefix: str = "") -> Arrays:
  result = {}
  for name, value in tree.items():
    result.update(flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value})
  return result


def assert_same(got: Arrays, expected: Arrays) -> None:
  assert sorted(got) == sorted(expected)
  for name, value in expected.items():
    assert got[name].dtype == value.dtype, name
    assert_array_equal(got[name], value, err_msg=name, strict=True)


def rows_of(report: ParameterReport, part: str) -> list[Parameter]:
  return [row for row in report if part in row.source]


# Layouts: each turns the flat parameters of `sde` into what another T5X model keeps.


def heads_apart(arrays: Arrays) -> Arrays:
  result = dict(arrays)
  for name, value in arrays.items():
    if "attention/out/" in name:
      result[name] = value.reshape(HEADS, HEAD_DIM, WIDTH)
    elif "attention/" in name:
      result[name] = value.reshape(WIDTH, HEADS, HEAD_DIM)
  return result


def scanned(arrays: Arrays) -> Arrays:
  result = {name: value for name, value in arrays.items() if "/layers_" not in name}
  for name in LAYER_NAMES:
    result[f"encoder/encoder/{name}"] = np.stack(
      [arrays[f"encoder/layers_{i}/{name}"] for i in range(2)], axis=1
    )
  return result


def scanned_heads_apart(arrays: Arrays) -> Arrays:
  result = scanned(heads_apart(arrays))
  assert result["encoder/encoder/attention/query/kernel"].shape == (WIDTH, 2, HEADS, HEAD_DIM)
  assert result["encoder/encoder/attention/out/kernel"].shape == (HEADS, 2, HEAD_DIM, WIDTH)
  return result


def table_in_the_encoder(arrays: Arrays) -> Arrays:
  result = dict(arrays)
  result["encoder/token_embedder/embedding"] = result.pop("token_embedder/embedding")
  return result


def with_decoder(arrays: Arrays) -> Arrays:
  decoder = {f"decoder/layers_0/self_{name}": np.ones((2, 2), np.float32) for name in LAYER_NAMES[1:5]}
  return {**arrays, **decoder, "decoder/logits_dense/kernel": np.ones((WIDTH, VOCAB), np.float32)}


LAYOUTS = [heads_apart, scanned, scanned_heads_apart, table_in_the_encoder, with_decoder]


@pytest.mark.parametrize("layout", [dict, *LAYOUTS])
def test_every_layout_gives_the_same_tower(sde, saved, layout):
  model = t5x.read(saved(layout(sde)))
  assert model.passage is None
  assert_same(flat(model.query.params), sde)
  assert all(value.flags.c_contiguous for value in flat(model.query.params).values())
  assert model.query.text == TextSpec()
  assert model.query.spec == TowerSpec(
    EncoderSpec(
      "t5",
      {
        "num_layers": 2,
        "num_heads": HEADS,
        "head_dim": HEAD_DIM,
        "embed_dim": WIDTH,
        "mlp_dim": HIDDEN,
        "relpos_buckets": 32,
        "relpos_max_distance": 128,
        "activation": "gelu",
        "gated": True,
        "relpos_per_layer": False,
        "layer_norm_eps": 1e-6,
      },
    ),
    vocab_size=VOCAB,
    pooling="mean",
    projection_dim=OUT,
    normalize=True,
  )
  # Every parameter of the file is in the report, once.
  sources = [row.source for row in model.query.report if row.source.startswith("target/")]
  assert sorted(sources) == sorted(f"target/{name}" for name in layout(sde))


def test_report_of_a_plain_checkpoint(sde, saved):
  report = t5x.read(saved(sde)).query.report
  assert report.summary == "22 taken, 0 reshaped, 1 left, 0 missing"
  assert report[0] == Parameter(
    "target/token_embedder/embedding", "token_embedder/embedding", "taken", (VOCAB, WIDTH)
  )
  assert report.of("left") == [Parameter("state/*", "", "left", (), "optimizer state, 1 array")]


def test_report_of_scanned_layers(sde, saved):
  report = t5x.read(saved(scanned_heads_apart(sde))).query.report
  assert report.summary == "4 taken, 9 reshaped, 1 left, 0 missing"
  assert rows_of(report, "query") == [
    Parameter(
      "target/encoder/encoder/attention/query/kernel",
      "encoder/layers_{0..1}/attention/query/kernel",
      "reshaped",
      (WIDTH, 2, HEADS, HEAD_DIM),
      "2 layers unstacked from axis 1, heads joined",
    )
  ]


def test_a_decoder_is_left_unread(sde, saved):
  checkpoint = saved(with_decoder(sde))
  for chunk in checkpoint.glob("target.decoder.*/0*"):
    chunk.unlink()
  report = t5x.read(checkpoint).query.report
  assert report.summary == "22 taken, 0 reshaped, 6 left, 0 missing"
  assert rows_of(report, "logits_dense") == [
    Parameter("target/decoder/logits_dense/kernel", "", "left", (WIDTH, VOCAB), "decoder")
  ]


def test_relative_positions_of_every_layer(sde, saved):
  """umT5: its table is [heads, layers, buckets] where layers are scanned."""
  tables = np.random.default_rng(0).normal(size=(HEADS, 2, 32)).astype(np.float32)
  arrays = scanned(sde)
  del arrays["encoder/relpos_bias/rel_embedding"]
  arrays["encoder/encoder/relpos_bias/rel_embedding"] = tables
  tower = t5x.read(saved(arrays)).query
  assert tower.spec.encoder.fields["relpos_per_layer"] is True
  assert tower.spec.encoder.fields["num_heads"] == HEADS
  for i in range(2):
    assert_array_equal(
      tower.params["encoder"][f"layers_{i}"]["relpos_bias"]["rel_embedding"], tables[:, i], strict=True
    )
  assert "relpos_bias" not in tower.params["encoder"]


def test_t5_1_0_has_one_wi_and_relu(sde, saved):
  arrays = {name.replace("wi_0", "wi"): value for name, value in sde.items() if "wi_1" not in name}
  fields = t5x.read(saved(arrays)).query.spec.encoder.fields
  assert (fields["gated"], fields["activation"], fields["mlp_dim"]) == (False, "relu", HIDDEN)


def test_without_projection(sde, saved):
  del sde["projection_layer/kernel"]
  tower = t5x.read(saved(sde)).query
  assert tower.spec.projection_dim is None
  assert "projection_layer" not in tower.params


def test_projection_with_bias(sde, saved):
  tower = t5x.read(saved({**sde, "projection_layer/bias": np.ones(OUT, np.float32)})).query
  assert tower.spec.projection_bias
  assert_array_equal(tower.params["projection_layer"]["bias"], np.ones(OUT))


def ours(name: str) -> str:
  return name.replace("left_", "query_", 1).replace("right_", "passage_", 1)


@pytest.mark.parametrize("rename", [str, ours], ids=["left_right", "query_passage"])
def test_two_towers_that_share_a_projection(ade_spl, saved, rename):
  model = t5x.read(saved({rename(name): value for name, value in ade_spl.items()}))
  assert model.passage is not None
  for tower, side in ((model.query, "left_"), (model.passage, "right_")):
    expected = {name.removeprefix(side): value for name, value in ade_spl.items() if name.startswith(side)}
    expected["projection_layer/kernel"] = ade_spl["projection_layer/kernel"]
    assert_same(flat(tower.params), expected)
  assert (
    model.query.params["projection_layer"]["kernel"] is model.passage.params["projection_layer"]["kernel"]
  )
  assert model.query.report.summary == "22 taken, 0 reshaped, 1 left, 0 missing"
  assert model.passage.report.summary == "22 taken, 0 reshaped, 0 left, 0 missing"


def test_a_projection_of_one_side_only(ade_spl, saved):
  """Towers of different widths: one is projected to the other's."""
  arrays = dict(ade_spl)
  arrays["right_projection_layer/kernel"] = arrays.pop("projection_layer/kernel")
  model = t5x.read(saved(arrays))
  assert model.passage is not None
  assert (model.query.spec.projection_dim, model.passage.spec.projection_dim) == (None, OUT)


@pytest.mark.parametrize(
  "rows, note", [(100, "4 rows of zeros added: 96 -> 100"), (90, "last 6 rows cut: 96 -> 90")]
)
def test_vocab_size(sde, saved, rows, note):
  tower = t5x.read(saved(sde), vocab_size=rows).query
  table = tower.params["token_embedder"]["embedding"]
  kept = min(rows, VOCAB)
  assert table.shape == (rows, WIDTH)
  assert tower.spec.vocab_size == rows
  assert_array_equal(table[:kept], sde["token_embedder/embedding"][:kept])
  assert not table[kept:].any()
  name = "token_embedder/embedding"
  assert tower.report.of("reshaped") == [Parameter(f"target/{name}", name, "reshaped", (VOCAB, WIDTH), note)]


def test_vocab_size_keeps_a_shared_table_shared(ade_spl, saved):
  arrays = {name: value for name, value in ade_spl.items() if "token_embedder" not in name}
  arrays["token_embedder/embedding"] = ade_spl["left_token_embedder/embedding"]
  model = t5x.read(saved(arrays), vocab_size=128)
  assert model.passage is not None
  table = model.query.params["token_embedder"]["embedding"]
  assert table.shape == (128, WIDTH)
  assert table is model.passage.params["token_embedder"]["embedding"]


def without(arrays: Arrays, part: str) -> Arrays:
  return {name: value for name, value in arrays.items() if part not in name}


FAULTS = [
  (lambda a: without(a, "layers_0/mlp/wo"), r"missing encoder/layers_0/mlp/wo/kernel"),
  (
    lambda a: without(a, "wi_1"),
    r"missing encoder/layers_0/mlp/wi_1/kernel, encoder/layers_1/mlp/wi_1/kernel",
  ),
  (lambda a: without(a, "layers_0/"), r"missing .*encoder/layers_0/.* and 1 more"),
  (lambda a: without(a, "encoder_norm"), r"missing encoder/encoder_norm/scale"),
  (lambda a: without(a, "relpos_bias"), r"missing encoder/relpos_bias/rel_embedding"),
  (lambda a: without(a, "token_embedder"), r"missing token_embedder"),
  (lambda a: without(a, "encoder/"), r"missing encoder"),
  (lambda a: {**a, "similarity/scale": a["encoder/encoder_norm/scale"]}, r"no place .*: similarity/scale\."),
  (lambda a: {**a, "encoder/layers_0/moe/kernel": np.ones(3)}, r"no place .*: encoder/layers_0/moe/kernel"),
  (
    lambda a: {**a, "encoder/layers_0/relpos_bias/rel_embedding": a["encoder/relpos_bias/rel_embedding"]},
    r"left over encoder/layers_0/relpos_bias/rel_embedding",
  ),
  (
    lambda a: {**a, "encoder/layers_0/mlp/wi/kernel": np.ones((WIDTH, HIDDEN))},
    r"left over encoder/layers_0/mlp/wi_0",
  ),
  (lambda a: {**a, **scanned(a)}, r"target/encoder/layers_0/.* again|target/encoder/encoder/.* again"),
  (
    lambda a: {**a, "encoder/token_embedder/embedding": a["token_embedder/embedding"]},
    r"no place .*: token_embedder/embedding",
  ),
  (
    lambda a: {**a, "encoder/encoder_norm/scale": np.ones(9)},
    r"encoder_norm/scale has shape \(9,\), expected \(24,\)",
  ),
  (lambda a: {**a, "encoder/relpos_bias/rel_embedding": np.ones((5, 32))}, r"32 wide, which 5 heads"),
  (
    lambda a: {**a, "encoder/layers_0/attention/query/kernel": np.ones(9)},
    r"query/kernel has shape \(9,\), expected two",
  ),
  (
    lambda a: {**a, "encoder/encoder_norm/scale": np.full(24, np.nan)},
    r"encoder_norm/scale holds NaN or infinity",
  ),
  (
    lambda a: {**a, "encoder/encoder_norm/scale": np.full(24, 1e300)},
    r"encoder_norm/scale holds NaN or infinity \(in float32\)",
  ),
  (
    lambda a: {**a, "encoder/encoder_norm/scale": np.ones(24, np.int32)},
    r"encoder_norm/scale holds int32, expected",
  ),
  (
    lambda a: {**scanned(a), "encoder/encoder/mlp/wo/kernel": np.ones(3)},
    r"wo/kernel has shape \(3,\), expected an axis",
  ),
  (
    lambda a: {**scanned(a), "encoder/encoder/mlp/wo/kernel": np.ones((HIDDEN, 3, WIDTH))},
    r"missing encoder/layers_2/attention/key/kernel",
  ),
  (lambda a: {"something/kernel": np.ones(3)}, r"no place .*: something/kernel"),
]


@pytest.mark.parametrize("fault, message", FAULTS, ids=range(len(FAULTS)))
def test_faults_of_the_parameters_are_listed(sde, saved, fault, message):
  checkpoint = saved({name: np.asarray(value) for name, value in fault(sde).items()})
  with pytest.raises(UserError, match=message):
    t5x.read(checkpoint)


def test_a_side_that_is_missing_or_twice(ade_spl, saved, tmp_path):
  with pytest.raises(UserError, match="missing right_encoder, the other side's"):
    t5x.read(saved(without(ade_spl, "right_encoder")))


def test_a_part_for_both_sides_and_for_one(ade_spl, saved):
  arrays = {**ade_spl, "left_projection_layer/kernel": ade_spl["projection_layer/kernel"]}
  with pytest.raises(UserError, match="projection_layer is there for both sides and for one of them"):
    t5x.read(saved(arrays))


def test_no_parameters(tmp_path):
  folder = tmp_path / "checkpoint_0"
  folder.mkdir()
  t5x_native.write(folder, {}, step=0)
  with pytest.raises(UserError, match="no parameters"):
    t5x.read(folder)


@pytest.mark.parametrize("run", ["legacy_f32", "orbax_f32"])
def test_t5x_s_own_checkpoints(oracles, run):
  model = t5x.read(oracles / "t5x_ckpt" / run / "checkpoint_3")
  report = model.query.report
  assert report.summary == "22 taken, 0 reshaped, 1 left, 0 missing"
  assert report[-1] == Parameter("state/*", "", "left", (), "optimizer state, 89 arrays")
  fields = model.query.spec.encoder.fields
  assert {name: fields[name] for name in ("num_layers", "num_heads", "head_dim", "embed_dim", "mlp_dim")} == {
    "num_layers": 2,
    "num_heads": 4,
    "head_dim": 8,
    "embed_dim": 48,
    "mlp_dim": 64,
  }
  assert (model.query.spec.vocab_size, model.query.spec.projection_dim) == (256, 40)
  expected = np.load(oracles / "t5x_ckpt" / "legacy_f32_expected.npz")
  for name, value in flat(model.query.params).items():
    # orbax_f32 is another run, in another order of the data.
    assert_allclose(value, expected[f"target/{name}"], rtol=0, atol=0 if run == "legacy_f32" else 2e-5)


def test_written_and_read_back(oracles, tmp_path):
  model = t5x.read(oracles / "t5x_ckpt" / "legacy_f32" / "checkpoint_3")
  written = t5x.write(tmp_path / "new" / "folder", model, step=12)
  assert written == tmp_path / "new" / "folder" / "checkpoint_12"
  assert [path.name for path in written.parent.iterdir()] == ["checkpoint_12"]
  again = t5x.read(written)
  assert again.query.spec == model.query.spec
  assert_same(flat(again.query.params), flat(model.query.params))
  assert t5x.read_arrays(written, prefix="state/") == {"state/step": np.int32(12)}


def test_written_as_t5x_writes(oracles, tmp_path):
  sample = oracles / "t5x_ckpt" / "legacy_f32" / "checkpoint_3"
  written = t5x.write(tmp_path, t5x.read(sample), step=3)
  index, expected = (msgpack.unpackb((folder / "checkpoint").read_bytes()) for folder in (written, sample))
  expected["optimizer"]["state"]["param_states"] = {}
  assert index == expected
  target = sorted(path.name for path in sample.glob("target.*"))
  assert sorted(path.name for path in written.iterdir()) == ["checkpoint", *target]
  for name in target:
    assert sorted(path.name for path in (written / name).iterdir()) == sorted(
      path.name for path in (sample / name).iterdir()
    )
    assert (written / name / ".zarray").read_bytes() == (sample / name / ".zarray").read_bytes()


def test_large_arrays_are_cut_into_chunks_that_divide_them(sde, tmp_path):
  table = np.zeros((3 * 2**20, WIDTH), np.float32)  # 288 MiB
  table[:: 2**18] = 1
  params = {"token_embedder": {"embedding": table}, **nested(without(sde, "token_embedder"))}
  model = t5x.read(t5x.write(tmp_path, ForeignModel(tower(params, vocab_size=len(table)))))
  chunks = json.loads(
    (tmp_path / "checkpoint_0" / "target.token_embedder.embedding" / ".zarray").read_text()
  )["chunks"]
  assert chunks == [2**19, WIDTH]  # 48 MiB
  assert np.array_equal(model.query.params["token_embedder"]["embedding"], table)


def nested(arrays: Arrays) -> dict:
  tree: dict = {}
  for name, value in arrays.items():
    *modules, leaf = name.split("/")
    node = tree
    for module in modules:
      node = node.setdefault(module, {})
    node[leaf] = value
  return tree


def tower(params: dict, family: str = "t5", vocab_size: int = VOCAB, **spec) -> ForeignTower:
  fields = {"num_layers": 2, "num_heads": HEADS, "head_dim": HEAD_DIM, "embed_dim": WIDTH, "mlp_dim": HIDDEN}
  encoder = EncoderSpec(family, fields)  # pyright: ignore[reportArgumentType]
  return ForeignTower(
    TowerSpec(encoder, vocab_size, **{"projection_dim": OUT, **spec}), params, TextSpec(), ParameterReport()
  )


@pytest.mark.parametrize(
  "shared", [("projection_layer",), ("token_embedder",), (), ("token_embedder", "encoder")]
)
def test_two_towers_are_written_with_what_they_share(ade_spl, tmp_path, shared):
  left = nested(
    {name.removeprefix("left_"): value for name, value in ade_spl.items() if "right_" not in name}
  )
  right = nested(
    {name.removeprefix("right_"): value for name, value in ade_spl.items() if "left_" not in name}
  )
  right = jax.tree.map(np.copy, right) | {part: left[part] for part in shared}
  written = t5x.write(tmp_path, ForeignModel(tower(left), tower(right)))
  roots = {name.split("/")[1] for name in t5x.read_arrays(written, prefix="target/")}
  parts = ("token_embedder", "encoder", "projection_layer")
  assert roots == {
    name for part in parts for name in ([part] if part in shared else [f"left_{part}", f"right_{part}"])
  }
  again = t5x.read(written)
  assert again.passage is not None
  assert_same(flat(again.query.params), flat(left))
  assert_same(flat(again.passage.params), flat(right))
  for part in parts:
    both = zip(
      flat(again.query.params[part]).values(), flat(again.passage.params[part]).values(), strict=True
    )
    assert all((a is b) == (part in shared) for a, b in both)


def test_towers_that_share_all_are_written_as_one(sde, tmp_path):
  params = nested(sde)
  written = t5x.write(tmp_path, ForeignModel(tower(params), tower(params)))
  assert t5x.read(written).passage is None


def test_bfloat16_parameters_are_written_as_float32(sde, tmp_path):
  half = {name: value.astype(ml_dtypes.bfloat16) for name, value in sde.items()}
  written = t5x.write(tmp_path, ForeignModel(tower(nested(half))))
  assert_same(
    flat(t5x.read(written).query.params), {name: value.astype(np.float32) for name, value in half.items()}
  )


def test_an_existing_checkpoint_stays(sde, tmp_path):
  model = ForeignModel(tower(nested(sde)))
  written = t5x.write(tmp_path, model)
  before = (written / "checkpoint").stat().st_mtime_ns
  with pytest.raises(UserError, match="checkpoint_0: exists already"):
    t5x.write(tmp_path, model)
  assert (written / "checkpoint").stat().st_mtime_ns == before
  assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_0"]


def test_a_failed_write_leaves_nothing(sde, tmp_path):
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  # As on a full disk: small arrays can be written, the token table cannot.
  resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
  try:
    with pytest.raises(UserError, match=r"target.token_embedder.embedding: cannot be written .*disk full"):
      t5x.write(tmp_path, ForeignModel(tower(nested(sde))))
    with pytest.raises(UserError, match=r"target.token_embedder.embedding: cannot be written .*disk full"):
      t5x.write(tmp_path / "new", ForeignModel(tower(nested(sde))))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  assert list(tmp_path.iterdir()) == []  # nor the folder that it made


def test_what_a_killed_writer_left_is_nothing(tmp_path):
  assert t5x.is_free(tmp_path / "absent")
  assert t5x.is_free(tmp_path)
  (tmp_path / "checkpoint_0.tmp-abc").mkdir()
  assert t5x.is_free(tmp_path)
  (tmp_path / "checkpoint_0").mkdir()
  assert not t5x.is_free(tmp_path)
  (tmp_path / "file").touch()
  assert not t5x.is_free(tmp_path / "file")


def test_a_folder_that_cannot_be_made(sde, tmp_path):
  model = ForeignModel(tower(nested(sde)))
  (tmp_path / "file").write_text("")
  for name in ("file", "x" * 300):
    with pytest.raises(UserError, match=f"{name}: cannot be written"):
      t5x.write(tmp_path / name, model)


@pytest.mark.parametrize(
  "spec, message",
  [
    ({"family": "bert"}, "the query tower is of the family 'bert'; a T5X checkpoint holds T5 encoders"),
    ({"pooling": "max"}, "pooling='max' for 'mean'"),
    ({"normalize": False}, "normalize=False for True"),
    ({"projection_activation": "tanh"}, "projection_activation='tanh' for 'none'"),
    ({"vocab_size": 97}, "vocab_size=97 for 96"),
  ],
)
def test_what_a_checkpoint_cannot_say_is_refused(sde, tmp_path, spec, message):
  with pytest.raises(UserError, match=message):
    t5x.write(tmp_path, ForeignModel(tower(nested(sde), **spec)))
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [-1, 2**31, 1.5, True])
def test_step_must_be_a_number(sde, tmp_path, step):
  with pytest.raises(UserError, match="expected a whole number"):
    t5x.write(tmp_path, ForeignModel(tower(nested(sde))), step=step)


def test_missing_parameters_are_not_written(sde, tmp_path):
  with pytest.raises(UserError, match=r"the query tower: .*missing encoder/encoder_norm/scale"):
    t5x.write(tmp_path, ForeignModel(tower(nested(without(sde, "encoder_norm")))))


def test_parameters_that_are_not_finite_are_not_written(sde, tmp_path):
  spoilt = {**sde, "encoder/encoder_norm/scale": np.full(WIDTH, np.nan, np.float32)}
  with pytest.raises(UserError, match=r"not written: the parameter encoder/encoder_norm/scale holds NaN"):
    t5x.write(tmp_path / "out", ForeignModel(tower(nested(spoilt))))
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("oracle", ["sde", "ade_spl"])
def test_oracle_embeddings_through_a_checkpoint(oracles, saved, tmp_path, oracle):
  """T5X Retrieval's parameters, read, written, read again and put through our towers, give its embeddings."""
  archive = np.load(oracles / f"{oracle}_t5_1_1_f32.npz")
  model = t5x.read(t5x.write(tmp_path / "again", t5x.read(saved(of_params(archive)))))
  sides = ((model.query, "left"), (model.passage or model.query, "right"))
  for side, name in sides:
    spec = side.spec
    tower = Tower(
      T5Encoder(**spec.encoder.fields),
      vocab_size=spec.vocab_size,
      projection_dim=spec.projection_dim,
      pooling=spec.pooling,
      normalize=spec.normalize,
    )
    params = jax.tree.map(jnp.asarray, side.params)
    got = jax.jit(lambda p, tokens, tower=tower: tower.apply({"params": p}, tokens, train=False))(
      params, archive[f"{name}_tokens"]
    )
    assert_allclose(got, archive[f"{name}_emb"], atol=1e-5)
