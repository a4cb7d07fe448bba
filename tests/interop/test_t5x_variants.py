"""The on-disk variants of T5X checkpoints, each made from a real one, and damaged or unfinished ones."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore

from retrieval_jax.errors import UserError
from retrieval_jax.interop import t5x

KERNEL = "target/encoder/layers_1/mlp/wi_0/kernel"
SCALE = "target/encoder/encoder_norm/scale"


@pytest.fixture
def samples(oracles) -> pathlib.Path:
  return oracles / "t5x_ckpt"


@pytest.fixture
def expected(samples) -> dict[str, np.ndarray]:
  """What T5X's own reader gave for the sample in its own format."""
  return dict(np.load(samples / "legacy_f32_expected.npz"))


@pytest.fixture
def native(samples, tmp_path) -> pathlib.Path:
  """A copy of the sample in T5X's own format, to be damaged or rewritten."""
  return shutil.copytree(samples / "legacy_f32" / "checkpoint_3", tmp_path / "checkpoint_3")


@pytest.fixture
def orbax(samples, tmp_path) -> pathlib.Path:
  """A copy of the sample in Orbax's format."""
  return shutil.copytree(samples / "orbax_f32" / "checkpoint_3", tmp_path / "orbax" / "checkpoint_3")


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
  """Names, types and bits."""
  assert got.keys() == expected.keys()
  for name, value in expected.items():
    assert got[name].dtype == value.dtype, name
    assert got[name].shape == value.shape, name
    assert got[name].tobytes() == value.tobytes(), name


def test_native_reads_bit_equal_to_t5x(samples, expected):
  got = t5x.read_arrays(samples / "legacy_f32" / "checkpoint_3")
  assert len(got) == 111
  assert list(got) == sorted(got)
  assert_same(got, expected)


def test_the_index_file_names_its_folder(samples, expected):
  got = t5x.read_arrays(samples / "legacy_f32" / "checkpoint_3" / "checkpoint", prefix="state/step")
  assert_same(got, {"state/step": expected["state/step"]})


def test_prefix_reads_nothing_else(native, expected):
  for folder in native.glob("state.*"):
    shutil.rmtree(folder)
  got = t5x.read_arrays(native, prefix="target/")
  assert len(got) == 22
  assert_same(got, {name: value for name, value in expected.items() if name.startswith("target/")})


@pytest.mark.parametrize("item", [".", "state"])
def test_orbax_reads_bit_equal_to_orbax(samples, expected, item):
  """Another run than the native sample's, in another order of the data: its values are near, not equal."""
  checkpoint = samples / "orbax_f32" / "checkpoint_3"
  got = t5x.read_arrays(checkpoint / item)
  tree = ocp.PyTreeCheckpointer().restore((checkpoint / "state").absolute())
  assert_same(got, {name: np.asarray(value) for name, value in flat(tree).items()})
  assert {name: (value.shape, value.dtype) for name, value in got.items()} == {
    name: (value.shape, value.dtype) for name, value in expected.items()
  }
  for name, value in expected.items():
    if name.startswith("target/"):
      np.testing.assert_allclose(got[name], value, rtol=0, atol=2e-5, err_msg=name)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  result = {}
  for key, value in tree.items():
    result.update(flat(value, f"{prefix}{key}/") if isinstance(value, dict) else {prefix + key: value})
  return result


def test_orbax_folders_without_a_database(tmp_path):
  tree = {
    "target": {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.c": np.ones(4, ml_dtypes.bfloat16)}
  }
  folder = tmp_path / "checkpoint_0" / "state"
  ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)).save(folder, tree)
  got = t5x.read_arrays(folder.parent)
  assert_same(got, {"target/a": tree["target"]["a"], "target/b.c": tree["target"]["b.c"]})


def test_orbax_zarr_3_says_so(tmp_path):
  folder = tmp_path / "checkpoint_0" / "state"
  handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
  ocp.Checkpointer(handler).save(folder, {"target": {"a": np.ones(3, np.float32)}})
  with pytest.raises(UserError, match="zarr version 3, expected version 2"):
    t5x.read_arrays(folder.parent)


# Variants: each turns T5X's description of one array, and the array's folder, into what other versions wrote.


def gfile(spec: dict, folder: pathlib.Path) -> Any:
  return {**spec, "kvstore": {**spec["kvstore"], "driver": "gfile"}}


def gcs(spec: dict, folder: pathlib.Path) -> Any:
  return {**spec, "kvstore": {**spec["kvstore"], "driver": "gcs", "bucket": "t5x-dummy-bucket"}}


def path_at_the_top(spec: dict, folder: pathlib.Path) -> Any:
  return {**spec, "kvstore": {"driver": "gfile"}, "path": spec["kvstore"]["path"]}


def path_without_slash(spec: dict, folder: pathlib.Path) -> Any:
  return {**spec, "kvstore": {**spec["kvstore"], "path": spec["kvstore"]["path"].rstrip("/")}}


def dtype_in_metadata(spec: dict, folder: pathlib.Path) -> Any:
  rest = {key: value for key, value in spec.items() if key != "dtype"}
  return {**rest, "metadata": {**spec["metadata"], "dtype": "<f4"}}


def inline(spec: dict, folder: pathlib.Path) -> Any:
  value = open_array(folder).read().result()
  shutil.rmtree(folder)
  return packed(value)


def inline_in_pieces(spec: dict, folder: pathlib.Path) -> Any:
  value = open_array(folder).read().result()
  shutil.rmtree(folder)
  pieces = np.array_split(value.reshape(-1), 3)
  return {
    "__msgpack_chunked_array__": True,
    "shape": {str(i): size for i, size in enumerate(value.shape)},
    "chunks": {str(i): packed(piece) for i, piece in enumerate(pieces)},
  }


def many_chunks(spec: dict, folder: pathlib.Path) -> Any:
  value = open_array(folder).read().result()
  rewrite(folder, value, chunks=[-(-size // 3) for size in value.shape])
  assert len(list(folder.glob("[0-9]*"))) > 1
  return spec


VARIANTS = [
  gfile,
  gcs,
  path_at_the_top,
  path_without_slash,
  dtype_in_metadata,
  inline,
  inline_in_pieces,
  many_chunks,
]


def pack(value: Any) -> bytes:
  result = msgpack.packb(value)
  assert isinstance(result, bytes)
  return result


def packed(value: np.ndarray) -> msgpack.ExtType:
  return msgpack.ExtType(1, pack((value.shape, value.dtype.name, value.tobytes())))


def open_array(folder: pathlib.Path):
  return tensorstore.open(
    {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder}/"}}, open=True
  ).result()


def rewrite(
  folder: pathlib.Path, value: np.ndarray, chunks: list[int] | None = None, **metadata: Any
) -> None:
  shutil.rmtree(folder)
  spec = {
    "driver": "zarr",
    "dtype": value.dtype.name,
    "kvstore": {"driver": "file", "path": f"{folder}/"},
    "metadata": {"shape": value.shape, "chunks": chunks or value.shape, **metadata},
  }
  tensorstore.open(spec, create=True).result().write(value).result()


def rewrite_index(
  checkpoint: pathlib.Path, variant: Callable[[dict, pathlib.Path], Any], version: int = 3
) -> None:
  """Replaces every description of an array in the index by the variant's."""

  def changed(node: Any) -> Any:
    if isinstance(node, dict) and isinstance(node.get("driver"), str):
      return variant(node, checkpoint / node["kvstore"]["path"])
    if isinstance(node, dict):
      return {key: changed(value) for key, value in node.items()}
    return node

  path = checkpoint / "checkpoint"
  contents = msgpack.unpackb(path.read_bytes())
  path.write_bytes(pack({**changed(contents), "version": version}))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(native, expected, variant, version):
  rewrite_index(native, variant, version)
  assert_same(t5x.read_arrays(native), expected)


def in_bfloat16(stored: type) -> Callable[[dict, pathlib.Path], Any]:
  """Parameters in bfloat16, optimizer state in float32; `stored`: the type that the zarr folder says."""

  def variant(spec: dict, folder: pathlib.Path) -> Any:
    if not folder.name.startswith("target."):
      return spec
    value = open_array(folder).read().result().astype(ml_dtypes.bfloat16).view(stored)
    rewrite(folder, value)
    return {**spec, "dtype": value.dtype.name}

  return variant


@pytest.mark.parametrize(
  "version, stored", [(2, np.uint16), (3, ml_dtypes.bfloat16)], ids=["uint16", "bfloat16"]
)
def test_bfloat16(native, expected, version, stored):
  rewrite_index(native, in_bfloat16(stored), version)
  rounded = {
    name: value.astype(ml_dtypes.bfloat16) if name.startswith("target/") else value
    for name, value in expected.items()
  }
  assert_same(t5x.read_arrays(native), rounded)
  kernel = t5x.read(native).query.params["encoder"]["layers_1"]["mlp"]["wi_0"]["kernel"]
  assert kernel.dtype == np.float32
  np.testing.assert_array_equal(kernel, rounded[KERNEL].astype(np.float32))


def test_inline_bfloat16_in_version_2(native, expected):
  def variant(spec: dict, folder: pathlib.Path) -> Any:
    return packed(open_array(folder).read().result().astype(ml_dtypes.bfloat16))

  rewrite_index(native, variant, version=2)
  assert_same(t5x.read_arrays(native, prefix=SCALE), {SCALE: np.asarray(expected[SCALE], ml_dtypes.bfloat16)})


def test_uint16_of_version_3_stays(native):
  def variant(spec: dict, folder: pathlib.Path) -> Any:
    return packed(np.asarray([1, 2], np.uint16))

  rewrite_index(native, variant)
  assert_same(t5x.read_arrays(native, prefix=SCALE), {SCALE: np.asarray([1, 2], np.uint16)})


def test_a_chunk_left_out_by_fill_value_is_filled(native, expected):
  """Zarr lets a writer leave out chunks of nothing but fill_value; T5X does not do so."""
  value = np.concatenate([np.zeros(24, np.float32), expected[SCALE][24:]])
  folder = native / SCALE.replace("/", ".")
  rewrite(folder, value, chunks=[24], dtype="<f4", fill_value=0.0)
  assert not (folder / "0").exists()
  np.testing.assert_array_equal(t5x.read_arrays(native, prefix=SCALE)[SCALE], value)


# Damage: each changes a native checkpoint; the message names the file.


def cut_index(native: pathlib.Path) -> None:
  path = native / "checkpoint"
  path.write_bytes(path.read_bytes()[:-100])


def empty_index(native: pathlib.Path) -> None:
  (native / "checkpoint").write_bytes(b"")


def index_of_another_program(native: pathlib.Path) -> None:
  (native / "checkpoint").write_bytes(pack({"params": {}}))


def index_with_another_extension(native: pathlib.Path) -> None:
  (native / "checkpoint").write_bytes(pack({"optimizer": {"a": msgpack.ExtType(7, b"x")}}))


def index_with_short_array(native: pathlib.Path) -> None:
  short = msgpack.ExtType(1, pack(((3,), "float32", b"1234")))
  (native / "checkpoint").write_bytes(pack({"optimizer": {"a": short}}))


def index_with_objects(native: pathlib.Path) -> None:
  objects = msgpack.ExtType(1, pack(((1,), "object", b"12345678")))
  (native / "checkpoint").write_bytes(pack({"optimizer": {"a": objects}}))


def index_with_a_lost_piece(native: pathlib.Path) -> None:
  pieces = {"__msgpack_chunked_array__": True, "shape": {"0": 4}, "chunks": {"0": packed(np.ones(3))}}
  (native / "checkpoint").write_bytes(pack({"optimizer": {"a": pieces}}))


def later_version(native: pathlib.Path) -> None:
  rewrite_index(native, lambda spec, folder: spec, version=4)


def another_driver(native: pathlib.Path) -> None:
  rewrite_index(native, lambda spec, folder: {**spec, "driver": "json"})


def a_path_outside(native: pathlib.Path) -> None:
  rewrite_index(native, lambda spec, folder: {**spec, "kvstore": {"driver": "file", "path": "../secret/"}})


def text_for_an_array(native: pathlib.Path) -> None:
  rewrite_index(native, lambda spec, folder: "zarr")


def cut_zarray(native: pathlib.Path) -> None:
  path = native / KERNEL.replace("/", ".") / ".zarray"
  path.write_text(path.read_text()[:40])


def no_zarray(native: pathlib.Path) -> None:
  (native / KERNEL.replace("/", ".") / ".zarray").unlink()


def cut_chunk(native: pathlib.Path) -> None:
  path = native / KERNEL.replace("/", ".") / "0.0"
  path.write_bytes(path.read_bytes()[:-50])


def no_chunk(native: pathlib.Path) -> None:
  (native / KERNEL.replace("/", ".") / "0.0").unlink()


def no_folder(native: pathlib.Path) -> None:
  shutil.rmtree(native / KERNEL.replace("/", "."))


def folder_of_another_checkpoint(native: pathlib.Path) -> None:
  rewrite(native / KERNEL.replace("/", "."), np.ones((48, 32), np.float32))


DAMAGE = [
  (cut_index, r"checkpoint_3/checkpoint: damaged or not a T5X checkpoint"),
  (empty_index, r"checkpoint_3/checkpoint: damaged or not a T5X checkpoint"),
  (index_of_another_program, r"checkpoint_3/checkpoint: not a T5X checkpoint: it has no 'optimizer'"),
  (index_with_another_extension, r"checkpoint_3/checkpoint: damaged .*extension type 7, expected arrays"),
  (index_with_short_array, r"checkpoint_3/checkpoint: damaged"),
  (index_with_objects, r"checkpoint_3/checkpoint: damaged .*values of type object, expected numbers"),
  (index_with_a_lost_piece, r"checkpoint_3/checkpoint: a is an array in pieces, and they are damaged"),
  (later_version, r"checkpoint_3/checkpoint: T5X checkpoint version 4; versions 1 to 3"),
  (another_driver, r"is stored as 'json' in 'file'; expected 'zarr'"),
  (a_path_outside, r"lies at '../secret/'; expected the name of a folder beside the file"),
  (text_for_an_array, r"checkpoint_3/checkpoint: .* is str, expected an array"),
  (cut_zarray, r"target.encoder.layers_1.mlp.wi_0.kernel/.zarray: damaged"),
  (no_zarray, r"target.encoder.layers_1.mlp.wi_0.kernel/.zarray: the array is not there"),
  (cut_chunk, r"target.encoder.layers_1.mlp.wi_0.kernel: damaged .*0.0.* Copy the checkpoint again"),
  (no_chunk, r"target.encoder.layers_1.mlp.wi_0.kernel/0.0: this chunk of the array is not there \(of 1\)"),
  (no_folder, r"target.encoder.layers_1.mlp.wi_0.kernel/.zarray: the array is not there"),
  (folder_of_another_checkpoint, r"wi_0.kernel: shape \(48, 32\), expected \(48, 64\)"),
]


@pytest.mark.parametrize("damage, message", DAMAGE, ids=lambda value: getattr(value, "__name__", ""))
def test_damage_is_named(native, damage, message):
  damage(native)
  with pytest.raises(UserError, match=message):
    t5x.read_arrays(native)


def test_each_lost_chunk_of_many_is_named(native):
  folder = native / KERNEL.replace("/", ".")
  rewrite(folder, open_array(folder).read().result(), chunks=[16, 64])
  (folder / "1.0").unlink()
  with pytest.raises(UserError, match=r"kernel/1.0: this chunk of the array is not there \(of 3\)"):
    t5x.read_arrays(native)


def no_commit_time(orbax: pathlib.Path) -> None:
  path = orbax / "_CHECKPOINT_METADATA"
  path.write_text(json.dumps({**json.loads(path.read_text()), "commit_timestamp_nsecs": None}))


def unfinished_item(orbax: pathlib.Path) -> None:
  (orbax / "state").rename(orbax / "state.orbax-checkpoint-tmp-17")


def no_item(orbax: pathlib.Path) -> None:
  shutil.rmtree(orbax / "state")
  (orbax / "commit_success.txt").unlink()


def cut_tree(orbax: pathlib.Path) -> None:
  path = orbax / "state" / "_METADATA"
  path.write_text(path.read_text()[:1000])


def leaf_not_in_database(orbax: pathlib.Path) -> None:
  path = orbax / "state" / "_METADATA"
  path.write_text(path.read_text().replace('"wi_0"', '"wi_9"'))


def cut_database(orbax: pathlib.Path) -> None:
  largest = max((orbax / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
  largest.write_bytes(largest.read_bytes()[:1000])


def cut_manifest(orbax: pathlib.Path) -> None:
  path = orbax / "state" / "manifest.ocdbt"
  path.write_bytes(path.read_bytes()[:-10])


ORBAX_DAMAGE = [
  (lambda orbax: (orbax / "commit_success.txt").unlink(), r"checkpoint_3/commit_success.txt: no such file"),
  (lambda orbax: (orbax / "state/commit_success.txt").unlink(), r"state/commit_success.txt: no such file"),
  (no_commit_time, r"_CHECKPOINT_METADATA: it has no commit time: the checkpoint was not finished"),
  (unfinished_item, r"state.orbax-checkpoint-tmp-17: the checkpoint was not finished"),
  (no_item, r"state/manifest.ocdbt: no such file"),
  (lambda orbax: (orbax / "state/manifest.ocdbt").unlink(), r"manifest.ocdbt: no such file"),
  (cut_tree, r"state/_METADATA: damaged, expected JSON"),
  (leaf_not_in_database, r"wi_9.*\.zarray: the array is not there"),
  (cut_database, r"state.*: damaged"),
  (cut_manifest, r"state: damaged"),
]


@pytest.mark.parametrize("damage, message", ORBAX_DAMAGE, ids=range(len(ORBAX_DAMAGE)))
def test_orbax_damage_is_named(orbax, damage, message):
  damage(orbax)
  with pytest.raises(UserError, match=message):
    t5x.read_arrays(orbax)


@pytest.mark.parametrize("name", ["checkpoint_3.tmp-1714", "checkpoint_3.orbax-checkpoint-tmp-1714"])
def test_unfinished_folder_is_refused(samples, tmp_path, name):
  folder = shutil.copytree(samples / "legacy_f32" / "checkpoint_3", tmp_path / name)
  with pytest.raises(UserError, match=f"{name}: the name of a checkpoint that was not finished"):
    t5x.read_arrays(folder)


def test_wrong_folder_says_which_to_name(samples, tmp_path):
  with pytest.raises(UserError, match=r"no such file.*It holds checkpoint_3: name one of them"):
    t5x.read_arrays(samples / "legacy_f32")
  with pytest.raises(UserError, match="Name the folder of a T5X checkpoint"):
    t5x.read_arrays(tmp_path)
  with pytest.raises(UserError, match="nowhere: no such folder"):
    t5x.read_arrays(tmp_path / "nowhere")
