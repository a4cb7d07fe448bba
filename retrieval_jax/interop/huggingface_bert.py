"""BERT and DistilBERT in Hugging Face's files: config.json and the names of the tensors."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from retrieval_jax.errors import UserError
from retrieval_jax.interop.foreign import EncoderSpec
from retrieval_jax.interop.huggingface_parameters import (
  TOKEN_TABLE,
  Family,
  Pair,
  layer_norm,
  linear,
)
from retrieval_jax.interop.model_config import ModelConfig

VOCAB_SIZE: Final = 30522  # of a config.json that names none
DISTILBERT_EPS: Final = 1e-12

LEFT: Final = {
  r"pooler\..*": "the [CLS] classifier's layer, which no pooling here uses",
  r"(embeddings\.)?position_ids": "a constant",
  r"embeddings\.token_type_ids": "a constant",
}
BERT: Final = Family(("bert.",), r"(embeddings|encoder)\.", LEFT, {})
DISTILBERT: Final = Family(("distilbert.",), r"(embeddings|transformer)\.", LEFT, {})

# What each of the two calls the parts of a layer, after "encoder.layer.{i}" and "transformer.layer.{i}".
BERT_LAYER: Final = {
  "attention/query": "attention.self.query",
  "attention/key": "attention.self.key",
  "attention/value": "attention.self.value",
  "attention/out": "attention.output.dense",
  "attention_layer_norm": "attention.output.LayerNorm",
  "mlp/wi": "intermediate.dense",
  "mlp/wo": "output.dense",
  "mlp_layer_norm": "output.LayerNorm",
}
DISTILBERT_LAYER: Final = {
  "attention/query": "attention.q_lin",
  "attention/key": "attention.k_lin",
  "attention/value": "attention.v_lin",
  "attention/out": "attention.out_lin",
  "attention_layer_norm": "sa_layer_norm",
  "mlp/wi": "ffn.lin1",
  "mlp/wo": "ffn.lin2",
  "mlp_layer_norm": "output_layer_norm",
}


def bert_encoder(config: ModelConfig) -> EncoderSpec:
  """Returns the encoder that a BertModel's config.json describes.

  Raises: UserError for a key that asks for something BertEncoder does not compute.
  """
  config.expect("hidden_act", ["gelu"], "gelu")
  config.expect("position_embedding_type", ["absolute"], "absolute")
  fields = {
    "num_layers": config.layers("num_hidden_layers", 12),
    "num_heads": config.whole("num_attention_heads", 12),
    "embed_dim": config.whole("hidden_size", 768),
    "mlp_dim": config.whole("intermediate_size", 3072),
    "max_positions": config.whole("max_position_embeddings", 512),
    "token_types": config.whole("type_vocab_size", 2),
    "layer_norm_eps": config.positive("layer_norm_eps", 1e-12),
  }
  return EncoderSpec("bert", fields)


def distilbert_encoder(config: ModelConfig) -> EncoderSpec:
  """Returns the encoder that a DistilBertModel's config.json describes: a BERT without token types.

  sinusoidal_pos_embds makes no difference: the table is in the file either way.

  Raises: UserError for a key that asks for something BertEncoder does not compute.
  """
  config.expect("activation", ["gelu"], "gelu")
  fields = {
    "num_layers": config.layers("n_layers", 6),
    "num_heads": config.whole("n_heads", 12),
    "embed_dim": config.whole("dim", 768),
    "mlp_dim": config.whole("hidden_dim", 3072),
    "max_positions": config.whole("max_position_embeddings", 512),
    "token_types": 0,
    "layer_norm_eps": DISTILBERT_EPS,
  }
  return EncoderSpec("bert", fields)


def config_json(fields: Mapping[str, Any], *, vocab_size: int) -> dict[str, Any]:
  """Returns the config.json of an encoder: a DistilBertModel if it has no token types, else a BertModel.

  Raises: UserError for a DistilBERT with another layer_norm_eps than the 1e-12 that is part of its code.
  """
  common = {"vocab_size": vocab_size, "max_position_embeddings": fields["max_positions"], "pad_token_id": 0}
  if not fields["token_types"]:
    if fields["layer_norm_eps"] != DISTILBERT_EPS:
      raise UserError(
        f"layer_norm_eps={fields['layer_norm_eps']}: Hugging Face's encoder without token types, DistilBERT, has "
        f"{DISTILBERT_EPS}. Build the tower with token_types=2 to write a BERT."
      )
    return {
      "architectures": ["DistilBertModel"],
      "model_type": "distilbert",
      "activation": "gelu",
      "dim": fields["embed_dim"],
      "hidden_dim": fields["mlp_dim"],
      "n_heads": fields["num_heads"],
      "n_layers": fields["num_layers"],
      "sinusoidal_pos_embds": False,
      **common,
    }
  return {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": fields["embed_dim"],
    "intermediate_size": fields["mlp_dim"],
    "layer_norm_eps": fields["layer_norm_eps"],
    "num_attention_heads": fields["num_heads"],
    "num_hidden_layers": fields["num_layers"],
    "position_embedding_type": "absolute",
    "type_vocab_size": fields["token_types"],
    **common,
  }


def pairs(fields: Mapping[str, Any], *, vocab_size: int) -> Iterator[Pair]:
  """Yields every parameter of the encoder, a DistilBERT's if it has no token types."""
  width, mlp = fields["embed_dim"], fields["mlp_dim"]
  yield Pair("embeddings.word_embeddings.weight", TOKEN_TABLE, (vocab_size, width))
  positions = (fields["max_positions"], width)
  yield Pair("embeddings.position_embeddings.weight", "encoder/position_embedding/embedding", positions)
  if fields["token_types"]:
    types = (fields["token_types"], width)
    yield Pair("embeddings.token_type_embeddings.weight", "encoder/token_type_embedding/embedding", types)
  yield from layer_norm("embeddings.LayerNorm", "encoder/embedding_layer_norm", width, bias=True)
  names, stem = (BERT_LAYER, "encoder") if fields["token_types"] else (DISTILBERT_LAYER, "transformer")
  for i in range(fields["num_layers"]):
    for ours, theirs in names.items():
      their_name, our_name = f"{stem}.layer.{i}.{theirs}", f"encoder/layers_{i}/{ours}"
      if ours.endswith("layer_norm"):
        yield from layer_norm(their_name, our_name, width, bias=True)
      else:
        sizes = {"mlp/wi": (width, mlp), "mlp/wo": (mlp, width)}
        yield from linear(their_name, our_name, sizes.get(ours, (width, width)), bias=True)
