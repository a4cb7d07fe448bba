"""What every reader of other people's files gives and every writer takes: towers in our names, as plain values."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from retrieval_jax.interop.report import ParameterReport


class EncoderSpec(NamedTuple):
  """family: whose encoder. fields: the arguments of models.bert.BertEncoder or models.t5.T5Encoder that shape it.

  Example: `EncoderSpec("bert", {"num_layers": 6, "num_heads": 12, "embed_dim": 384, "mlp_dim": 1536})`.
  """

  family: Literal["bert", "t5"]
  fields: Mapping[str, Any]


class TowerSpec(NamedTuple):
  """The architecture of a tower, with the names and meanings of models.tower.Tower."""

  encoder: EncoderSpec
  vocab_size: int  # rows of the token table, which may be more than the vocabulary's entries
  pooling: str = "mean"
  projection_dim: int | None = None
  projection_bias: bool = False
  projection_activation: Literal["none", "tanh"] = "none"
  normalize: bool = True


class TextSpec(NamedTuple):
  """How the text of a tower is read, as far as the files say. None: they do not.

  vocabulary: "word_piece" (a tokenizer.json) or "sentence_piece" (a .model file), at vocabulary_path.
  options: how the file is read, where not as usual: {"lowercase": False} for a cased vocab.txt, {"extra_ids": 100} and
    {"special_tokens": True} for a SentencePiece model.
  max_length: tokens, special ones included. prefix: put before every text as it stands.
  template: how title and text of a passage are joined; None: the files do not say (no other framework's can).
  """

  vocabulary: Literal["word_piece", "sentence_piece"] | None = None
  vocabulary_path: pathlib.Path | None = None
  max_length: int | None = None
  prefix: str = ""
  options: Mapping[str, Any] = {}
  template: str | None = None


class ForeignTower(NamedTuple):
  """One tower.

  params: {"token_embedder": ..., "encoder": ..., "projection_layer": ...?}, nested, float32 numpy, one subtree a layer
    (layers_0, layers_1, ...), in the shapes of models.tower.Tower without scanned layers.
  report: what became of every parameter of the files.
  """

  spec: TowerSpec
  params: Mapping[str, Any]
  text: TextSpec
  report: ParameterReport


class ForeignModel(NamedTuple):
  """The towers of queries and passages; passage None: the query's serves both (SDE).

  Where both are given and the files share a part between them, the two towers hold the same array object.
  """

  query: ForeignTower
  passage: ForeignTower | None = None

  def each(self, change: Callable[[ForeignTower], ForeignTower]) -> "ForeignModel":
    """Returns the model with `change` applied to each tower it has.

    Example: `model.each(lambda tower: tower._replace(text=TextSpec()))`.
    """
    return ForeignModel(change(self.query), None if self.passage is None else change(self.passage))
