"""Tiny models of every family, made with transformers, and our towers for what is read from them."""

import functools
import pathlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from retrieval_jax.interop.foreign import EncoderSpec, ForeignTower, TextSpec, TowerSpec
from retrieval_jax.interop.report import ParameterReport
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower

V = 40
BERT = {
  "vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
  "max_position_embeddings": 48, "layer_norm_eps": 1e-5,
}  # fmt: skip
DISTILBERT = {
  "vocab_size": V, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 48,
}  # fmt: skip
T5 = {
  "vocab_size": V, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 3,
  "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
}  # fmt: skip
# name -> (transformers' config class, its arguments, its encoder's class)
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
  "bert": ("BertConfig", BERT, "BertModel"),
  "distilbert": ("DistilBertConfig", DISTILBERT, "DistilBertModel"),
  "distilbert_sinusoidal": (
    "DistilBertConfig",
    DISTILBERT | {"sinusoidal_pos_embds": True},
    "DistilBertModel",
  ),
  "t5_1_0": ("T5Config", T5, "T5EncoderModel"),
  "t5_1_1": (
    "T5Config",
    T5 | {"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-5},
    "T5EncoderModel",
  ),
  "t5_silu": ("T5Config", T5 | {"feed_forward_proj": "gated-silu"}, "T5EncoderModel"),
  "mt5": ("MT5Config", T5, "MT5EncoderModel"),
  "umt5": ("UMT5Config", T5, "UMT5EncoderModel"),
}

# Our towers of the same shapes: what is written.
SPECS = {
  "bert": EncoderSpec("bert", {
    "num_layers": 2, "num_heads": 2, "embed_dim": 16, "mlp_dim": 24, "max_positions": 48, "token_types": 2,
    "layer_norm_eps": 1e-5,
  }),
  "distilbert": EncoderSpec("bert", {
    "num_layers": 2, "num_heads": 2, "embed_dim": 16, "mlp_dim": 24, "max_positions": 48, "token_types": 0,
    "layer_norm_eps": 1e-12,
  }),
}  # fmt: skip
T5_FIELDS = {
  "num_layers": 2, "num_heads": 3, "head_dim": 6, "embed_dim": 16, "mlp_dim": 24, "relpos_buckets": 8,
  "relpos_max_distance": 20, "layer_norm_eps": 1e-6,
}  # fmt: skip
for name, activation, gated, per_layer in (
  ("t5_1_0", "relu", False, False),
  ("t5_1_1", "gelu", True, False),
  ("t5_ungated_gelu", "gelu", False, False),
  ("umt5", "gelu", True, True),
):
  SPECS[name] = EncoderSpec(
    "t5", {**T5_FIELDS, "activation": activation, "gated": gated, "relpos_per_layer": per_layer}
  )


def make(name: str, *, model_class: str | None = None, **changes: Any) -> Any:
  """Returns transformers' model of a family, or its class with a head, with random weights far from the defaults."""
  import torch
  import transformers

  config_class, arguments, encoder_class = FAMILIES[name]
  config = getattr(transformers, config_class)(**{**arguments, **changes})
  torch.manual_seed(len(name))
  model = getattr(transformers, model_class or encoder_class)(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():  # layer norms too, which start at 1 and 0
      parameter.add_(0.3 * torch.randn_like(parameter))
  return model


def batch(rows: int, length: int) -> np.ndarray:
  """Returns token ids padded with 0: a full row, one of a single token, and some in between."""
  rng = np.random.default_rng(length)
  tokens = rng.integers(1, V, (rows, length)).astype(np.int32)
  lengths = np.linspace(length, 1, rows).round().astype(int)
  return np.where(np.arange(length) < lengths[:, None], tokens, 0)


def their_vectors(model: Any, tokens: np.ndarray) -> np.ndarray:
  """Returns the mean of a transformers encoder's last hidden states, L2-normalised."""
  import torch

  mask = torch.tensor(tokens != 0)
  with torch.no_grad():
    hidden = model(input_ids=torch.tensor(tokens).long(), attention_mask=mask.long()).last_hidden_state
  weights = mask[:, :, None].float()
  pooled = (hidden * weights).sum(1) / weights.sum(1)
  return torch.nn.functional.normalize(pooled, dim=-1).numpy()


def build(spec: TowerSpec) -> Tower:
  """Returns the module of a specification."""
  encoder = {"bert": BertEncoder, "t5": T5Encoder}[spec.encoder.family](**spec.encoder.fields)
  return Tower(
    encoder,
    spec.vocab_size,
    projection_dim=spec.projection_dim,
    projection_bias=spec.projection_bias,
    projection_activation=spec.projection_activation,
    pooling=spec.pooling,
    normalize=spec.normalize,
  )


@functools.cache
def _apply(tower: Tower) -> Any:
  return jax.jit(functools.partial(tower.apply, train=False))


def our_vectors(tower: ForeignTower, tokens: np.ndarray) -> np.ndarray:
  """Returns the embeddings of our tower with these parameters."""
  return np.asarray(_apply(build(tower.spec))({"params": tower.params}, tokens))


def random_tower(spec: TowerSpec, *, seed: int = 0, text: TextSpec | None = None) -> ForeignTower:
  """Returns a tower of our own with random parameters."""
  shapes = jax.eval_shape(
    lambda: build(spec).init(jax.random.key(0), np.zeros((1, 1), np.int32), train=False)
  )
  rng = np.random.default_rng(seed)
  params = jax.tree.map(
    lambda leaf: rng.standard_normal(leaf.shape, dtype=np.float32) * np.float32(0.5),
    nn.meta.unbox(shapes["params"]),
  )
  return ForeignTower(spec, params, text or TextSpec(), ParameterReport())


def write_word_piece(folder: pathlib.Path) -> pathlib.Path:
  """Writes a lower-casing WordPiece tokenizer.json of V pieces and returns its path."""
  import tokenizers
  from tokenizers import models, normalizers, pre_tokenizers, processors

  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  pieces = [*special, *"abcdefghijklmnopqrst", *(f"##{letter}" for letter in "abcdefghijklmno")]
  assert len(pieces) == V
  vocabulary = {piece: i for i, piece in enumerate(pieces)}
  tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
  )
  tokenizer.add_special_tokens(special)
  tokenizer.save(str(folder / "tokenizer.json"))
  return folder / "tokenizer.json"
