"""T5, mT5 and umT5 in Hugging Face's files: config.json and the names of the encoder's tensors."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from retrieval_jax.errors import UserError
from retrieval_jax.interop.foreign import EncoderSpec
from retrieval_jax.interop.huggingface_parameters import TOKEN_TABLE, Family, Pair, layer_norm, linear
from retrieval_jax.interop.model_config import ModelConfig

T5: Final = Family(
  ("transformer.",),
  r"(shared|encoder)\.",
  {
    r"decoder\..*": "the decoder",
    r"lm_head\..*": "the decoder's output layer",
    r"encoder\.embed_tokens\.weight": "tied to shared.weight",
  },
  {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
)

# What a config.json that leaves these out means; each model_type has its own defaults.
OLD_SIZES: Final = {
  "vocab_size": 32128, "num_layers": 6, "num_heads": 8, "d_ff": 2048, "feed_forward_proj": "relu",
}  # fmt: skip
NEW_SIZES: Final = {
  "vocab_size": 250112, "num_layers": 8, "num_heads": 6, "d_ff": 1024, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
DEFAULTS: Final = {"t5": OLD_SIZES, "mt5": NEW_SIZES, "umt5": NEW_SIZES}

# feed_forward_proj -> (activation, gated). transformers reads "gated-gelu" as the tanh approximation, for T5's sake,
# but a bare "gelu" as the exact function, which no published T5 uses.
FEED_FORWARD: Final = {
  "relu": ("relu", False),
  "silu": ("silu", False),
  "gelu_new": ("gelu", False),
  "gated-relu": ("relu", True),
  "gated-silu": ("silu", True),
  "gated-gelu": ("gelu", True),
  "gated-gelu_new": ("gelu", True),
}
NAMES: Final = {
  ("relu", False): "relu",
  ("silu", False): "silu",
  ("gelu", False): "gelu_new",
  ("relu", True): "gated-relu",
  ("silu", True): "gated-silu",
  ("gelu", True): "gated-gelu",
}
HIDDEN_ACTS: Final = {"relu": "relu", "silu": "silu", "gelu": "gelu_new"}  # activation -> dense_act_fn


def encoder(config: ModelConfig) -> EncoderSpec:
  """Returns the encoder that the config.json of a T5, mT5 or umT5 describes.

  Raises: UserError for a key that asks for something T5Encoder does not compute.
  """
  defaults = DEFAULTS[config.values["model_type"]]
  name = config.expect("feed_forward_proj", list(FEED_FORWARD), defaults["feed_forward_proj"])
  activation, gated = FEED_FORWARD[name]
  # Derived keys that transformers writes too; other values than the derived ones would win over feed_forward_proj.
  config.expect("dense_act_fn", [HIDDEN_ACTS[activation]], HIDDEN_ACTS[activation])
  config.expect("is_gated_act", [gated], gated)
  fields = {
    "num_layers": config.layers("num_layers", defaults["num_layers"]),
    "num_heads": config.whole("num_heads", defaults["num_heads"]),
    "head_dim": config.whole("d_kv", 64),
    "embed_dim": config.whole("d_model", 512),
    "mlp_dim": config.whole("d_ff", defaults["d_ff"]),
    "relpos_buckets": config.whole("relative_attention_num_buckets", 32),
    "relpos_max_distance": config.whole("relative_attention_max_distance", 128),
    "activation": activation,
    "gated": gated,
    "relpos_per_layer": config.values["model_type"] == "umt5",
    "layer_norm_eps": config.positive("layer_norm_epsilon", 1e-6),
  }
  return EncoderSpec("t5", fields)


def config_json(fields: Mapping[str, Any], *, vocab_size: int) -> dict[str, Any]:
  """Returns the config.json of a T5EncoderModel, or of a UMT5EncoderModel if every layer has its position biases.

  Raises: UserError for an activation that transformers' T5 has no name for.
  """
  kind = (fields["activation"], fields["gated"])
  if kind not in NAMES:
    raise UserError(f"activation={kind[0]!r}: Hugging Face's T5 has {', '.join(sorted(HIDDEN_ACTS))}.")
  per_layer = fields["relpos_per_layer"]
  return {
    "architectures": ["UMT5EncoderModel" if per_layer else "T5EncoderModel"],
    "model_type": "umt5" if per_layer else "t5",
    "vocab_size": vocab_size,
    "d_model": fields["embed_dim"],
    "d_kv": fields["head_dim"],
    "d_ff": fields["mlp_dim"],
    "num_layers": fields["num_layers"],
    "num_heads": fields["num_heads"],
    "feed_forward_proj": NAMES[kind],
    "relative_attention_num_buckets": fields["relpos_buckets"],
    "relative_attention_max_distance": fields["relpos_max_distance"],
    "layer_norm_epsilon": fields["layer_norm_eps"],
    "is_encoder_decoder": True,  # as T5EncoderModel.save_pretrained writes it
    "pad_token_id": 0,
    "eos_token_id": 1,
  }


def pairs(fields: Mapping[str, Any], *, vocab_size: int) -> Iterator[Pair]:
  """Yields every parameter of the encoder."""
  width, mlp = fields["embed_dim"], fields["mlp_dim"]
  joined = fields["num_heads"] * fields["head_dim"]
  wi = ("wi_0", "wi_1") if fields["gated"] else ("wi",)
  yield Pair("shared.weight", TOKEN_TABLE, (vocab_size, width))
  for i in range(fields["num_layers"]):
    attention, mlp_block = f"encoder.block.{i}.layer.0", f"encoder.block.{i}.layer.1"
    layer = f"encoder/layers_{i}"
    yield from layer_norm(f"{attention}.layer_norm", f"{layer}/pre_attention_layer_norm", width, bias=False)
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
      theirs = f"{attention}.SelfAttention.{letter}"
      yield from linear(theirs, f"{layer}/attention/{name}", (width, joined), bias=False)
    yield from linear(f"{attention}.SelfAttention.o", f"{layer}/attention/out", (joined, width), bias=False)
    if i == 0 or fields["relpos_per_layer"]:
      owner = layer if fields["relpos_per_layer"] else "encoder"
      theirs = f"{attention}.SelfAttention.relative_attention_bias.weight"
      shape = (fields["relpos_buckets"], fields["num_heads"])
      yield Pair(theirs, f"{owner}/relpos_bias/rel_embedding", shape, transposed=True)
    yield from layer_norm(f"{mlp_block}.layer_norm", f"{layer}/pre_mlp_layer_norm", width, bias=False)
    for name in wi:
      theirs = f"{mlp_block}.DenseReluDense.{name}"
      yield from linear(theirs, f"{layer}/mlp/{name}", (width, mlp), bias=False)
    yield from linear(f"{mlp_block}.DenseReluDense.wo", f"{layer}/mlp/wo", (mlp, width), bias=False)
  yield from layer_norm("encoder.final_layer_norm", "encoder/encoder_norm", width, bias=False)
