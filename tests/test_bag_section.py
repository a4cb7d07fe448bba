"""Feature-bag models and their inputs: what must fit together, and the model section that a MODEL_DIR keeps of them."""

import json
import pathlib

import pytest

from retrieval_jax.bag_section import bag_section
from retrieval_jax.data.bag_features import bag_features
from retrieval_jax.data.bag_vocabulary import BagVocabulary, columns, length, tables, written
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import SentencePiece
from retrieval_jax.encoding import DEVICE_TOKENS, Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.model_section import keep_vocabularies, read_model_section
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import TowerPair, dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.retriever import Retriever, check_inputs

SPEC = {"id": ("values", "id"), "words": ("words", "title", "text")}
SENTENCE_PIECE = "package:seqio/test_data/sentencepiece/sentencepiece.model"


def vocabulary(path: pathlib.Path, *ids: str) -> BagVocabulary:
  written(path, bag_features(SPEC), (1, 3), (ids, ("red", "cats")))
  return BagVocabulary(str(path))


def inputs_of(own: BagVocabulary, **others) -> TextInputs:
  return TextInputs(own, length(own), length(own), **others)


def tower_of(own: BagVocabulary, **others) -> FeatureBagTower:
  return FeatureBagTower(tables(own), 8, (16, 4), columns=columns(own), **others)


def model_of(own: BagVocabulary, **others) -> TowerPair:
  return dual_encoder(tower_of(own, **others), sharing="ade_ste")


@pytest.fixture
def own(tmp_path: pathlib.Path) -> BagVocabulary:
  return vocabulary(tmp_path / "my bags.json", "7", "8")


def test_a_section_is_read_back(own: BagVocabulary, tmp_path: pathlib.Path):
  model = model_of(own, init_std={"id": 0.01}, final_relu=True, normalize=True, dtype="bfloat16")
  folder = tmp_path / "run"
  folder.mkdir()
  names = keep_vocabularies(inputs_of(own), folder)
  assert names == {str(tmp_path / "my bags.json"): "here:vocabulary/my_bags.json"}
  section = bag_section(model, inputs_of(own), names)
  assert section is not None
  assert "link_graph.LinkGraph.features = ('id', 'title', 'text')\n" in section
  assert "PRETRAINED = None\n" in section
  (folder / "model.gin").write_text(section, encoding="utf-8")
  (tmp_path / "my bags.json").unlink()
  found = read_model_section(folder)
  assert found.model == model
  assert found.inputs.fingerprint == inputs_of(own).fingerprint
  assert found.inputs.query_tokens([json.dumps({"id": "8"})]).tolist() == [[2, 0, 0, 0]]
  check_inputs(found)


def test_two_towers_with_a_vocabulary_each(own: BagVocabulary, tmp_path: pathlib.Path):
  other = vocabulary(tmp_path / "items.json", "a", "b", "c")
  model = dual_encoder(tower_of(own), passage_tower=tower_of(other, final_relu=True), sharing="ade")
  inputs = inputs_of(own, passage_vocabulary=other)
  (tmp_path / "run").mkdir()
  section = bag_section(model, inputs, keep_vocabularies(inputs, tmp_path / "run"))
  assert section is not None
  (tmp_path / "run" / "model.gin").write_text(section, encoding="utf-8")
  found = read_model_section(tmp_path / "run")
  assert found.model == model
  assert found.inputs.fingerprint == inputs.fingerprint
  check_inputs(found)


def test_text_models_have_no_such_section(own: BagVocabulary):
  text = dual_encoder(Tower(BertEncoder(1, 1, 4, 8), vocab_size=9))
  assert bag_section(text, TextInputs(SentencePiece(SENTENCE_PIECE), 4, 4), {}) is None
  assert bag_section(text, inputs_of(own), {}) is None


def test_bags_are_encoded_in_large_batches(own: BagVocabulary):
  devices = partitioner()
  assert Encoder(model_of(own), {}, devices).budget == DEVICE_TOKENS * devices.data_size
  assert Encoder(model_of(own), {}, devices, tokens_per_batch=64).budget == 64


def test_towers_and_inputs_that_do_not_fit(own: BagVocabulary, tmp_path: pathlib.Path):
  model = model_of(own)
  check_inputs(Retriever(model, inputs_of(own)))
  check_inputs(Retriever(model, inputs_of(vocabulary(tmp_path / "fewer.json", "7"))))
  with pytest.raises(UserError, match=r"the vocabulary has 4 rows of 'id', the query tower's table 3\. Use"):
    check_inputs(Retriever(model, inputs_of(vocabulary(tmp_path / "more.json", "7", "8", "9"))))
  with pytest.raises(
    UserError, match=r"the features id, words in \(1, 3\) columns, .* reads id, words in \(1, 4\)"
  ):
    check_inputs(
      Retriever(dual_encoder(tower_of(own).clone(columns=(1, 4)), sharing="ade_ste"), inputs_of(own))
    )
  with pytest.raises(UserError, match=r"reads id, words in None"):
    check_inputs(
      Retriever(dual_encoder(tower_of(own).clone(columns=None), sharing="ade_ste"), inputs_of(own))
    )
  with pytest.raises(
    UserError, match=r"PASSAGE_PREFIX='p: ': the passage tower reads feature bags, which have no"
  ):
    check_inputs(Retriever(model, inputs_of(own, passage_prefix="p: ")))
  with pytest.raises(
    UserError, match=r"the query tower reads feature bags and SentencePiece\(.* makes tokens of text"
  ):
    check_inputs(Retriever(model, TextInputs(SentencePiece(SENTENCE_PIECE), 4, 4)))
  with pytest.raises(
    UserError, match=r"the query tower reads text and BagVocabulary\(.*id 3x1, words 3x3\) makes rows"
  ):
    check_inputs(Retriever(dual_encoder(Tower(BertEncoder(1, 1, 4, 8), vocab_size=9)), inputs_of(own)))
