"""sentence-transformers folders that cannot be read or written: the file, the key, what was expected."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from toy_models import SPECS, V, random_tower, write_word_piece

from retrieval_jax.errors import UserError
from retrieval_jax.interop import sentence_transformers
from retrieval_jax.interop.foreign import ForeignModel, TextSpec, TowerSpec


@pytest.fixture
def text(tmp_path):
  (tmp_path / "words").mkdir()
  return TextSpec("word_piece", write_word_piece(tmp_path / "words"), max_length=24)


@pytest.fixture
def tower(text):
  spec = TowerSpec(SPECS["distilbert"], vocab_size=V, projection_dim=8, projection_bias=True)
  return random_tower(spec, text=text)


@pytest.fixture
def folder(tmp_path, tower):
  sentence_transformers.write(tmp_path / "model", ForeignModel(tower))
  return tmp_path / "model"


@pytest.fixture
def router(tmp_path, tower):
  other = random_tower(tower.spec, seed=1, text=tower.text)
  sentence_transformers.write(tmp_path / "router", ForeignModel(tower, other))
  return tmp_path / "router"


def change(path, **keys):
  path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def set_types(folder, *types):
  entries = [{"idx": i, "name": str(i), "path": f"{i}_x", "type": name} for i, name in enumerate(types)]
  (folder / "modules.json").write_text(json.dumps(entries))


OLD = "sentence_transformers.models."


@pytest.mark.parametrize(
  "types, message",
  [
    (["custom.Transformer"], r"the module type 'custom\.Transformer' cannot be read"),
    ([OLD + "CNN"], r"the module type .*CNN' cannot be read"),
    ([OLD + "Poling"], r"did you mean 'Pooling'\? Choose"),
    ([OLD + "Transformer"], "the modules are Transformer; expected Transformer > Pooling"),
    (
      [OLD + k for k in ("Transformer", "Pooling", "Normalize", "Dense")],
      "Pooling > Normalize > Dense; expected",
    ),
    (
      [OLD + k for k in ("Transformer", "Pooling", "Dense", "Dense")],
      "Dense > Dense; expected .* at most one Dense",
    ),
  ],
)
def test_modules(folder, types, message):
  set_types(folder, *types)
  with pytest.raises(UserError, match=rf"modules\.json: .*{message}" if "mean" not in message else message):
    sentence_transformers.read(folder)


@pytest.mark.parametrize("content", ["{", "{}", "[]", "[3]", "[" * 100_000])
def test_a_damaged_list_of_modules(folder, content):
  (folder / "modules.json").write_text(content)
  with pytest.raises(UserError, match=r"modules\.json: (not valid JSON|expected a list of modules)"):
    sentence_transformers.read(folder)


def test_a_module_outside_the_folder(folder):
  entries = json.loads((folder / "modules.json").read_text())
  entries[1]["path"] = "../1_Pooling"
  (folder / "modules.json").write_text(json.dumps(entries))
  with pytest.raises(UserError, match=r"the path '\.\./1_Pooling' leaves the model's folder"):
    sentence_transformers.read(folder)


@pytest.mark.parametrize(
  "keys, message",
  [
    ({"pooling_mode_mean_tokens": False}, "none of .*pooling_mode_mean_tokens.* is true"),
    ({"pooling_mode": []}, "pooling_mode asks for"),
    ({"pooling_mode": 3}, "pooling_mode asks for 3; expected one of"),
    ({"word_embedding_dimension": 384}, "word_embedding_dimension is 384, but the encoder's width is 16"),
    ({"embedding_dimension": "16"}, "embedding_dimension is '16', but the encoder's width is 16"),
    ({"include_prompt": False}, "include_prompt is False, expected True"),
    ({"pooling_mode_max_tokens": True}, "pooling_mode_mean_tokens and pooling_mode_max_tokens asks for"),
    (
      {"pooling_mode_mean_tokens": False, "pooling_mode_mean_sqrt_len_tokens": True},
      "pooling_mode_mean_sqrt_len_tokens asks for",
    ),
    ({"pooling_mode": "weightedmean"}, "pooling_mode asks for weightedmean; expected one of mean, max, cls"),
    ({"pooling_mode": ["mean", "cls"]}, r"pooling_mode asks for mean \+ cls"),
  ],
)
def test_pooling(folder, keys, message):
  change(folder / "1_Pooling" / "config.json", **keys)
  with pytest.raises(UserError, match=rf"1_Pooling/config\.json: {message}"):
    sentence_transformers.read(folder)


@pytest.mark.parametrize(
  "keys, message",
  [
    (
      {"activation_function": "torch.nn.modules.activation.GELU"},
      r"config\.json: activation_function is .*GELU'",
    ),
    ({"activation_function": ["Tanh"]}, r"config\.json: activation_function is \['Tanh'\]"),
    ({"use_residual": True}, r"config\.json: use_residual is True, expected False"),
    ({"module_input_name": "token_embeddings"}, r"config\.json: module_input_name is 'token_embeddings'"),
    ({"bias": False}, r"holds the tensors linear\.bias, linear\.weight, expected linear\.weight, as"),
    ({"in_features": 3}, r"linear\.weight has the shape \(8, 16\), but config\.json asks for \(8, 3\)"),
  ],
)
def test_dense(folder, keys, message):
  change(folder / "2_Dense" / "config.json", **keys)
  with pytest.raises(UserError, match=rf"2_Dense.*{message}"):
    sentence_transformers.read(folder)


def test_a_dense_of_another_width(folder):
  change(folder / "2_Dense" / "config.json", in_features=3)
  tensors = {"linear.weight": np.zeros((8, 3), np.float32), "linear.bias": np.zeros(8, np.float32)}
  save_file(tensors, folder / "2_Dense" / "model.safetensors")
  with pytest.raises(UserError, match="in_features is 3, but the encoder's width is 16"):
    sentence_transformers.read(folder)


@pytest.mark.parametrize(
  "keys, message",
  [
    ({"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask', expected 'feature-extraction'"),
    ({"max_seq_length": "long"}, "max_seq_length is 'long', expected a number"),
    ({"tokenizer_name_or_path": "x"}, "tokenizer_name_or_path is 'x', expected None"),
  ],
)
def test_settings(folder, keys, message):
  change(folder / "sentence_bert_config.json", **keys)
  with pytest.raises(UserError, match=rf"sentence_bert_config\.json: {message}"):
    sentence_transformers.read(folder)


def test_lower_case_text_for_a_tokenizer_that_keeps_case(folder):
  change(folder / "sentence_bert_config.json", do_lower_case=True)
  assert (
    sentence_transformers.read(folder).query.text.max_length == 24
  )  # its tokenizer makes letters small itself
  change(folder / "tokenizer.json", normalizer={"type": "NFC"})
  with pytest.raises(UserError, match="do_lower_case is True, but the tokenizer beside it keeps letter case"):
    sentence_transformers.read(folder)


def test_max_seq_length_beyond_the_positions(folder):
  change(folder / "sentence_bert_config.json", max_seq_length=512)
  assert sentence_transformers.read(folder).query.text.max_length == 48


@pytest.mark.parametrize(
  "config, query, passage",
  [
    ({}, "", ""),
    ({"prompts": {"query": "q: ", "passage": "p: "}}, "q: ", "p: "),
    ({"prompts": {"query": "q: ", "document": "d: ", "passage": "p: "}}, "q: ", "d: "),
    ({"prompts": {"query": None, "document": ""}}, "", ""),
    ({"prompts": {"query": "q: ", "x": "x: "}, "default_prompt_name": "x"}, "q: ", "x: "),
    ({"prompts": None, "default_prompt_name": None}, "", ""),
  ],
)
def test_prompts(folder, config, query, passage):
  (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
  model = sentence_transformers.read(folder)
  assert model.query.text.prefix == query
  assert (model.passage or model.query).text.prefix == passage
  assert (model.passage is None) == (query == passage)


def test_a_prompt_that_is_no_text(folder):
  change(folder / "config_sentence_transformers.json", prompts={"query": 3})
  with pytest.raises(UserError, match=r"config_sentence_transformers\.json: the prompt of query is 3"):
    sentence_transformers.read(folder)
  change(folder / "config_sentence_transformers.json", prompts=["query: "])
  with pytest.raises(UserError, match=r"prompts is \['query: '\], expected an object of texts by name"):
    sentence_transformers.read(folder)
  change(folder / "config_sentence_transformers.json", prompts={}, default_prompt_name=["x"])
  with pytest.raises(UserError, match=r"default_prompt_name is \['x'\], expected a text"):
    sentence_transformers.read(folder)


@pytest.mark.parametrize(
  "keys, message",
  [
    (
      {"structure": {"left": [], "right": []}},
      "the Router has the routes left, right; expected query among them",
    ),
    ({"structure": {"query": ["absent"]}}, "the route 'query' names 'absent', which types lacks"),
    ({"parameters": {"route_mappings": {"('query', 'text')": "query"}}}, "route_mappings is"),
    ({"types": None}, "expected types and structure of a Router"),
  ],
)
def test_routers(router, keys, message):
  change(router / "router_config.json", **keys)
  with pytest.raises(UserError, match=message):
    sentence_transformers.read(router)


def test_a_router_under_its_first_name(router):
  """Asym of versions 2 to 4: config.json, and a passage route of any name that means it."""
  config = json.loads((router / "router_config.json").read_text())
  (router / "router_config.json").unlink()
  config["structure"]["doc"] = config["structure"].pop("document")
  (router / "config.json").write_text(json.dumps(config))
  entries = [{"idx": 0, "name": "0", "path": "", "type": OLD + "Asym"}]
  (router / "modules.json").write_text(json.dumps(entries))
  model = sentence_transformers.read(router)
  assert model.passage is not None
  assert "document_0_Transformer" in model.passage.report[0].source


def test_what_cannot_be_written(tmp_path, tower):
  def write(tower):
    sentence_transformers.write(tmp_path / "out", ForeignModel(tower))

  with pytest.raises(UserError, match="the model's vocabulary is not known"):
    write(tower._replace(text=TextSpec()))
  with pytest.raises(
    UserError, match="sentence-transformers has no attention pooling, only mean, max, first, last"
  ):
    write(tower._replace(spec=tower.spec._replace(pooling="attention")))
  with pytest.raises(UserError, match=r"projection_layer holds bias, kernel with a kernel of \(16, 8\)"):
    write(tower._replace(spec=tower.spec._replace(projection_bias=False)))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["words"]  # nothing half-written


def test_the_report_has_the_dense(folder):
  report = sentence_transformers.read(folder).query.report
  assert [(line.source, line.target, line.status) for line in report[-2:]] == [
    ("2_Dense/linear.weight", "projection_layer/kernel", "reshaped"),
    ("2_Dense/linear.bias", "projection_layer/bias", "taken"),
  ]


def test_numbers_that_no_model_can_have(tmp_path, folder, tower):
  path = folder / "2_Dense" / "model.safetensors"
  save_file(
    {"linear.weight": np.full((8, 16), np.nan, np.float32), "linear.bias": np.zeros(8, np.float32)}, path
  )
  with pytest.raises(UserError, match=r"2_Dense/model\.safetensors: linear\.weight holds NaN or infinity"):
    sentence_transformers.read(folder)
  kernel = np.full((16, 8), np.nan, np.float32)
  params = {**tower.params, "projection_layer": {**tower.params["projection_layer"], "kernel": kernel}}
  with pytest.raises(UserError, match="the parameter projection_layer/kernel holds NaN or infinity"):
    sentence_transformers.write(tmp_path / "out", ForeignModel(tower, tower._replace(params=params)))
  assert not (tmp_path / "out").exists()
