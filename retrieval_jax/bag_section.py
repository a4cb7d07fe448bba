"""The model section (model.gin) of feature-bag towers: their sizes and the vocabulary in MODEL_DIR, without the graph."""

from collections.abc import Mapping
from typing import Any, Final

from retrieval_jax.data.bag_vocabulary import BagVocabulary
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.model_section import scheme_of
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.models.feature_bag import FeatureBagTower

TOWER: Final = "feature_bag.FeatureBagTower"
FIELDS: Final = ("features", "columns", "embed_dim", "hidden_dims", "final_relu", "normalize", "init_std")
HEADER: Final = """# The towers of this folder and the vocabulary that they read.
# To train with them in another MODEL_DIR, from random numbers: --gin_file=<this file>
from __gin__ import dynamic_registration

from retrieval_jax.data import bag_vocabulary
from retrieval_jax.data import link_graph
from retrieval_jax.data import text_inputs
from retrieval_jax.models import dual_encoder
from retrieval_jax.models import feature_bag

"""


def bag_section(model: Any, inputs: TextInputs, vocabularies: Mapping[str, str]) -> str | None:
  """Returns gin text that defines MODEL, INPUTS and PRETRAINED of feature-bag towers; None for other towers.

  It fits no vocabulary and names no data: what the towers read of link graphs stands in it too, as
  LinkGraph.features.

  vocabularies: the name of each vocabulary's copy by its path, of model_section.keep_vocabularies.

  Example: `bag_section(model, inputs, {"bags.json": "here:vocabulary/bags.json"})`.
  """
  query, passage = inputs.query_side.vocabulary, inputs.passage_side.vocabulary
  if not (
    isinstance(model, TowerPair)
    and isinstance(model.query_tower, FeatureBagTower)
    and isinstance(model.passage_tower, FeatureBagTower)
    and isinstance(query, BagVocabulary)
    and isinstance(passage, BagVocabulary)
  ):
    return None
  lines = [f"ACTIVATION_DTYPE = {model.query_tower.dtype!r}", "", "MODEL = @dual_encoder.dual_encoder()"]
  lines += [f"dual_encoder.dual_encoder.sharing = {scheme_of(model)!r}"]
  lines += _tower("query", "tower", model.query_tower)
  if model.passage_tower != model.query_tower:
    lines += _tower("passage", "passage_tower", model.passage_tower)
  lines += ["", "INPUTS = @text_inputs.TextInputs()"]
  lines += [f"text_inputs.TextInputs.query_length = {inputs.query_side.length}"]
  lines += [f"text_inputs.TextInputs.passage_length = {inputs.passage_side.length}"]
  lines += _vocabulary("vocabulary", query, vocabularies)
  if inputs.passage_vocabulary is not None:
    lines += _vocabulary("passage_vocabulary", passage, vocabularies)
  fields = tuple(dict.fromkeys((*query.fields, *passage.fields)))
  lines += ["", "# What link graphs write of their nodes.", f"link_graph.LinkGraph.features = {fields!r}"]
  return HEADER + "\n".join([*lines, "", "PRETRAINED = None", ""])


def _tower(scope: str, argument: str, tower: FeatureBagTower) -> list[str]:
  return [
    f"dual_encoder.dual_encoder.{argument} = @{scope}/{TOWER}()",
    *(f"{scope}/{TOWER}.{name} = {getattr(tower, name)!r}" for name in FIELDS),
    f"{scope}/{TOWER}.dtype = %ACTIVATION_DTYPE",
  ]


def _vocabulary(field: str, vocabulary: BagVocabulary, names: Mapping[str, str]) -> list[str]:
  return [
    f"text_inputs.TextInputs.{field} = @{field}/bag_vocabulary.BagVocabulary()",
    f"{field}/bag_vocabulary.BagVocabulary.path = {names[vocabulary.path]!r}",
  ]
