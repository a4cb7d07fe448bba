"""Conversions each way through the command, what they report, and what they refuse."""

import json
import re
import shutil

import gin
import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax import convert, launch
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece, train_sentencepiece
from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.errors import UserError
from retrieval_jax.interop import sentence_transformers, t5x
from retrieval_jax.interop.foreign import EncoderSpec, ForeignModel, TextSpec, TowerSpec
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.portable import tower_of
from retrieval_jax.retriever import Retriever
from tests.interop.toy_models import SPECS, V, random_tower, write_word_piece

QUERIES = ["a cab", "bad face", ""]
PASSAGES = ["a fed cab", {"title": "Babe", "text": "aced it"}, "deaf " * 100]
T5 = EncoderSpec("t5", {
  "num_layers": 2, "num_heads": 2, "head_dim": 4, "embed_dim": 8, "mlp_dim": 16, "relpos_buckets": 32,
  "relpos_max_distance": 128, "activation": "gelu", "gated": True, "relpos_per_layer": False, "layer_norm_eps": 1e-6,
})  # fmt: skip


def run(*flags: object) -> None:
  convert.main([str(flag) for flag in flags])


def vectors(path, **options) -> tuple[np.ndarray, np.ndarray]:
  model = DualEncoder.load(str(path), **options)
  return model.encode_queries(QUERIES), model.encode_passages(PASSAGES)


def assert_same_vectors(one, other) -> None:
  for ours, theirs in zip(one, other, strict=True):
    assert_allclose(ours, theirs, atol=1e-5)


def train_flags(tmp_path) -> list[str]:
  (tmp_path / "train.tsv").write_text(
    "".join(f"a {w}\tbad {w} face\n" for w in ("cab", "fed", "deaf", "babe") * 4)
  )
  return [
    "--gin_file=losses/samtone.gin",
    "--gin_file=data/tsv.gin",
    f"--gin.DATA_PATH={tmp_path / 'train.tsv'}",
    "--gin.BATCH_SIZE=16",
    "--gin.TRAIN_STEPS=1",
    "--gin.LEARNING_RATE=1e-9",
  ]


def train(*flags) -> None:
  gin.clear_config()
  try:
    launch.run("train", [str(flag) for flag in flags])
  finally:
    gin.clear_config()


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "spiece.model"
  words = ["a", "cab", "bad", "face", "fed", "deaf", "babe", "aced"]
  train_sentencepiece([" ".join(words[i:] + words[:i]) for i in range(8)] * 4, path, vocab_size=16)
  return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  """A sentence-transformers folder: a BERT with a Dense of bias and tanh, prompts, 12 tokens."""
  folder = tmp_path_factory.mktemp("st")
  text = TextSpec("word_piece", write_word_piece(folder), max_length=12, prefix="a ")
  spec = TowerSpec(
    SPECS["bert"], V, "first", projection_dim=5, projection_bias=True, projection_activation="tanh"
  )
  query = random_tower(spec, text=text)
  sentence_transformers.write(
    folder / "model", ForeignModel(query, query._replace(text=text._replace(prefix="")))
  )
  return folder / "model"


@pytest.fixture(scope="module")
def pair(tmp_path_factory, sentence_piece):
  """A T5X checkpoint of two T5 towers that share their projection."""
  text = TextSpec("sentence_piece", sentence_piece, max_length=16)
  spec = TowerSpec(T5, 16, projection_dim=6)
  query, passage = (random_tower(spec, seed=seed, text=text) for seed in (1, 2))
  passage = passage._replace(params={**passage.params, "projection_layer": query.params["projection_layer"]})
  return t5x.write(tmp_path_factory.mktemp("t5x"), ForeignModel(query, passage), step=7)


def test_sentence_transformers_to_ours_and_back(bert, tmp_path, capsys):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  printed = capsys.readouterr().out
  assert f"{bert} (sentence_transformers)" in printed
  assert "0 missing" in printed
  assert "queries: bert encoder" in printed
  assert "prefix 'a '" in printed
  assert_same_vectors(vectors(tmp_path / "own"), vectors(bert))
  run(f"--from={tmp_path / 'own'}", f"--to={tmp_path / 'back'}")
  assert_same_vectors(vectors(tmp_path / "back"), vectors(bert))
  for name in ("model.safetensors", "2_Dense/model.safetensors"):
    assert (tmp_path / "back" / name).read_bytes() == (bert / name).read_bytes()


def test_a_model_dir_stands_alone(bert, tmp_path):
  """It can be moved, and what it came from may go."""
  source = shutil.copytree(bert, tmp_path / "source")
  run(f"--from={source}", f"--to={tmp_path / 'own'}")
  expected = vectors(source)
  shutil.rmtree(source)
  (tmp_path / "own").rename(tmp_path / "moved")
  assert_same_vectors(vectors(tmp_path / "moved"), expected)


def test_t5x_to_ours_to_t5x(pair, sentence_piece, tmp_path):
  run(f"--from={pair}", f"--to={tmp_path / 'own'}", f"--vocabulary={sentence_piece}", "--passage_prefix=bad ")
  text = (tmp_path / "own" / "model.gin").read_text()
  assert "SHARING = 'ade_spl'" in text
  assert "PASSAGE_PREFIX = 'bad '" in text
  run(f"--from={tmp_path / 'own'}", f"--to={tmp_path / 't5x'}", "--format=t5x")
  old, new = t5x.read_arrays(pair, prefix="target/"), t5x.read_arrays(tmp_path / "t5x" / "checkpoint_0")
  for name, value in old.items():
    assert_array_equal(new[name], value, err_msg=name)
  options = {
    "vocabulary": str(sentence_piece),
    "query_length": 16,
    "passage_length": 16,
    "passage_prefix": "bad ",
  }
  long = {"query_length": 16, "passage_length": 16}
  assert_same_vectors(vectors(tmp_path / "own", **long), vectors(pair, **options))


def test_t5x_to_a_router_of_sentence_transformers(pair, sentence_piece, tmp_path):
  run(
    f"--from={pair}",
    f"--to={tmp_path / 'st'}",
    "--format=sentence_transformers",
    f"--vocabulary={sentence_piece}",
    "--query_length=16",
    "--passage_length=16",
  )
  options = {"vocabulary": str(sentence_piece), "query_length": 16, "passage_length": 16}
  assert_same_vectors(vectors(tmp_path / "st"), vectors(pair, **options))


def test_ours_to_hugging_face(tmp_path, sentence_piece):
  text = TextSpec("sentence_piece", sentence_piece, max_length=16)
  tower = random_tower(TowerSpec(T5, 16), text=text)
  checkpoint = t5x.write(tmp_path / "t5x", ForeignModel(tower))
  run(
    f"--from={checkpoint}",
    f"--to={tmp_path / 'own'}",
    f"--vocabulary={sentence_piece}",
    "--query_length=16",
    "--passage_length=16",
  )
  run(f"--from={tmp_path / 'own'}", f"--to={tmp_path / 'hf'}", "--format=huggingface")
  assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "t5"
  assert_same_vectors(vectors(tmp_path / "hf", query_length=16, passage_length=16), vectors(tmp_path / "own"))


def test_vocab_size_adds_rows_and_says_so(pair, sentence_piece, tmp_path, capsys):
  run(
    f"--from={pair}",
    f"--to={tmp_path / 'own'}",
    f"--vocabulary={sentence_piece}",
    "--vocab_size=32",
    "--dry_run",
  )
  printed = capsys.readouterr().out
  assert "reshaped  target/left_token_embedder/embedding" in " ".join(printed.split("\n"))
  assert "16" in printed
  assert "32" in printed
  assert "dry run: nothing was written" in printed
  assert not (tmp_path / "own").exists()


def test_training_starts_from_a_converted_model_and_a_model_dir(bert, tmp_path, capfd):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  start = [f"--gin_file={tmp_path / 'own' / 'model.gin'}", *train_flags(tmp_path)]
  train(*start, f"--gin.MODEL_DIR={tmp_path / 'one'}")
  assert "pretrained: " in capfd.readouterr().err
  assert_same_vectors(vectors(tmp_path / "one"), vectors(bert))
  again = f"--gin.INITIAL_CHECKPOINT_PATH={tmp_path / 'one'}"
  train(*start, again, f"--gin.MODEL_DIR={tmp_path / 'two'}")
  assert f"pretrained: {tmp_path / 'one'}, checkpoint 1" in capfd.readouterr().err
  assert_same_vectors(vectors(tmp_path / "two"), vectors(bert))
  own_file = [
    f"--gin_file={tmp_path / 'two' / 'model.gin'}",
    *train_flags(tmp_path),
  ]  # a trained folder's own
  train(*own_file, f"--gin.MODEL_DIR={tmp_path / 'three'}")
  assert "pretrained: " in capfd.readouterr().err
  assert_same_vectors(vectors(tmp_path / "three"), vectors(bert))
  with pytest.raises(UserError, match="holds converted weights without a training's state"):
    train(*start, f"--gin.MODEL_DIR={tmp_path / 'own'}")


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--from={pair}", "--to={tmp}/own"], "the files bring no vocabulary: name the SentencePiece model"),
    (["--from={pair}", "--to={tmp}/hf", "--format=huggingface"], "queries and passages have one each here"),
    (["--from={bert}", "--to={tmp}/x", "--format=t5x"], "T5"),
    (["--from={bert}", "--to={bert}"], "is there already; expected a new or an empty folder"),
    (["--from={tmp}/nothing", "--to={tmp}/own"], "nothing"),
    (["--from={bert}", "--to={tmp}/own", "--step=3"], "is no MODEL_DIR of retrieval_jax"),
    (["--from={bert}", "--to={tmp}/own", "--vocab_size=3"], "entries"),
    (["--from={bert}", "--to=gs://bucket/own"], "expected a local folder"),
    (["--from={bert}", "--to={tmp}/a\\b"], "may not hold a backslash"),
    (
      ["--from={bert}", "--to={tmp}/own", "--query_prefix=a a a a a a a a a a a a "],
      "QUERY_PREFIX=.* fills the 12 tokens",
    ),
    (
      ["--from={pair}", "--to={tmp}/own", "--vocabulary={bert}/tokenizer.json", "--cased"],
      "--cased is for the vocab.txt",
    ),
  ],
)
def test_what_cannot_be_is_one_message_and_nothing_is_written(bert, pair, tmp_path, capsys, flags, message):
  with pytest.raises(SystemExit) as stop:
    run(*(flag.format(bert=bert, pair=pair, tmp=tmp_path) for flag in flags))
  assert stop.value.code == 2
  error = capsys.readouterr().err
  assert error.startswith("error: ")
  assert error.count("\n") <= 3

  assert re.search(message, error), error
  assert not list(tmp_path.iterdir())


def test_a_model_dir_brings_its_own_settings(bert, tmp_path, capsys):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  with pytest.raises(SystemExit):
    run(f"--from={tmp_path / 'own'}", f"--to={tmp_path / 'st'}", "--pooling=mean")
  assert "says itself what --pooling would" in capsys.readouterr().err


def test_options_template_and_scheme_survive_ours_to_ours(tmp_path):
  """A cased vocab.txt, a template, a frozen embedder: a conversion keeps all that decides the tokens and the training."""
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Cab", "cab", "Babe", "babe", ":", *"abcdefghij"]
  (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
  inputs = TextInputs(
    WordPiece(str(tmp_path / "vocab.txt"), lowercase=False), 8, 12, passage_template="{title} : {text}"
  )
  tower = tower_of(TowerSpec(SPECS["bert"], len(words), "attention"))
  retriever = Retriever(dual_encoder(tower, sharing="ade_fte"), inputs)
  params = jax.jit(retriever.model.init)(jax.random.key(0))
  model = DualEncoder(retriever, params, source="here")
  source = convert.Source("here", "made", model.foreign(), "ade_fte")
  convert._write_own(tmp_path / "own", source)
  run(f"--from={tmp_path / 'own'}", f"--to={tmp_path / 'again'}", "--format=retrieval_jax")
  again = DualEncoder.load(str(tmp_path / "again"))
  assert again.retriever.inputs.passage_template == "{title} : {text}"
  assert again.retriever.model.frozen_paths == ("token_embedder/.*",)
  passage = [{"title": "Cab", "text": "Babe"}]
  tokens = again.retriever.inputs.passage_tokens(passage)[0]
  assert tokens[:5].tolist() == [2, words.index("Cab"), words.index(":"), words.index("Babe"), 3]
  assert_allclose(again.encode_passages(passage), model.encode_passages(passage), atol=1e-5)


def test_a_template_that_a_format_cannot_say_is_printed(bert, tmp_path, capsys):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  path = tmp_path / "own" / "model.gin"
  path.write_text(path.read_text().replace("'{title} {text}'", "'{title}: {text}'"))
  run(f"--from={tmp_path / 'own'}", f"--to={tmp_path / 'st'}")
  assert "must join title and text as '{title}: {text}'" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["SCAN_LAYERS=True", "SHARING=ade", "SHARING=ade_ste"])
def test_training_starts_from_a_moved_folder_with_another_layout_of_the_same_model(bert, tmp_path, change):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  (tmp_path / "own").rename(tmp_path / "moved")
  train(
    f"--gin_file={tmp_path / 'moved' / 'model.gin'}",
    *train_flags(tmp_path),
    f"--gin.{change}",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  assert_same_vectors(vectors(tmp_path / "run"), vectors(bert))


def test_a_file_that_includes_a_converted_model_finds_its_vocabulary(bert, tmp_path):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  (tmp_path / "mine.gin").write_text(f"include '{tmp_path / 'own' / 'model.gin'}'\nDROPOUT_RATE = 0.0\n")
  train(f"--gin_file={tmp_path / 'mine.gin'}", *train_flags(tmp_path), f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert (tmp_path / "run" / "vocabulary" / "tokenizer.json").is_file()


def test_resuming_with_a_model_that_computes_something_else_is_refused(bert, tmp_path):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  flags = [
    f"--gin_file={tmp_path / 'own' / 'model.gin'}",
    *train_flags(tmp_path),
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  ]
  train(*flags)
  with pytest.raises(UserError, match=r"query/pooling: was 'first', is 'max'"):
    train(*flags, "--gin.TRAIN_STEPS=2", "--gin.query/Tower.pooling=max")
  train(*flags, "--gin.TRAIN_STEPS=2", "--gin.DROPOUT_RATE=0.3", "--gin.REMAT_POLICY=full")


def test_weights_of_a_model_with_other_heads_are_refused_from_our_own_folders_too(bert, tmp_path):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  with pytest.raises(UserError, match="num_heads is 2 in the files, 4 in the model"):
    train(
      f"--gin_file={tmp_path / 'own' / 'model.gin'}",
      *train_flags(tmp_path),
      "--gin.query/BertEncoder.num_heads=4",
      f"--gin.MODEL_DIR={tmp_path / 'run'}",
    )


def test_a_vocabulary_with_a_long_path_of_spaces_is_kept(bert, tmp_path):
  folder = tmp_path / ("a folder with spaces in its name " * 3)
  folder.mkdir()
  shutil.copyfile(bert / "tokenizer.json", folder / "tokenizer.json")
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  text = (tmp_path / "own" / "model.gin").read_text()
  (tmp_path / "own" / "model.gin").write_text(text.replace("here:vocabulary", str(folder)))
  train(
    f"--gin_file={tmp_path / 'own' / 'model.gin'}",
    *train_flags(tmp_path),
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  assert "'here:vocabulary/tokenizer.json'" in (tmp_path / "run" / "model.gin").read_text()
  shutil.rmtree(folder)
  assert_same_vectors(vectors(tmp_path / "run"), vectors(bert))


def test_a_prefix_that_begins_as_a_path_does_is_a_prefix(bert, tmp_path):
  prefixes = ("here: ", "look 'here:' \"x\"")
  flags = [f"--query_prefix={prefixes[0]}", f"--passage_prefix={prefixes[1]}"]
  run(f"--from={bert}", f"--to={tmp_path / 'own'}", *flags, "--query_length=40", "--passage_length=40")
  inputs = DualEncoder.load(str(tmp_path / "own")).retriever.inputs
  assert (inputs.query_prefix, inputs.passage_prefix) == prefixes


def test_a_folder_of_an_odd_name_can_be_read_again(bert, tmp_path):
  folder = tmp_path / 'it\'s "mine" é'
  run(f"--from={bert}", f"--to={folder}")
  assert_same_vectors(vectors(folder), vectors(bert))
  train(f"--gin_file={folder / 'model.gin'}", *train_flags(tmp_path), f"--gin.MODEL_DIR={folder / 'run'}")
  assert_same_vectors(vectors(folder / "run"), vectors(bert))


@pytest.mark.parametrize(
  "old, new, message",
  [
    ("num_heads = 2", "num_heads = 4", "num_heads: was 2, is 4"),
    ("POOLING = 'first'", "POOLING = 'max'", "pooling: was 'first', is 'max'"),
    ("projection_activation = 'tanh'", "projection_activation = 'none'", "was 'tanh', is 'none'"),
    ("normalize = True", "normalize = 'no'", "normalize = 'no': expected bool"),
    ("POOLING = 'first'", "POOLING = 3", "expected str"),
  ],
)
def test_an_edited_model_section_is_refused(bert, tmp_path, old, new, message):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  path = tmp_path / "own" / "model.gin"
  assert old in path.read_text()
  path.write_text(path.read_text().replace(old, new))
  with pytest.raises(UserError, match=message):
    DualEncoder.load(str(tmp_path / "own"))


def test_what_a_format_cannot_hold_is_said(bert, tmp_path, capsys, sentence_piece):
  text = TextSpec("sentence_piece", sentence_piece, max_length=16, prefix="a ")
  checkpoint = t5x.write(tmp_path / "t5x", ForeignModel(random_tower(TowerSpec(T5, 16), text=text)))
  flags = [
    f"--from={checkpoint}",
    f"--vocabulary={sentence_piece}",
    "--query_prefix=a ",
    "--query_length=8",
    "--passage_length=16",
  ]
  run(*flags, f"--to={tmp_path / 'hf'}", "--format=huggingface")
  printed = capsys.readouterr().out
  assert "note: a huggingface folder has no place for a prefix: put 'a ' before queries" in printed
  assert "holds the encoder alone: mean pooling and L2 normalisation come after it" in printed
  run(*flags, f"--to={tmp_path / 'st'}", "--format=sentence_transformers")
  assert (
    "the folder has one length: 16 tokens, where queries are cut at 8 and passages at 16 here"
    in capsys.readouterr().out
  )


def test_a_parameter_that_is_not_finite_goes_nowhere(bert, tmp_path, capsys):
  model = DualEncoder.load(str(bert))
  model.params["projection_layer"]["kernel"] = model.params["projection_layer"]["kernel"].at[0, 0].set(np.nan)
  with pytest.raises(UserError, match="the parameter projection_layer/kernel holds NaN or infinity"):
    model.foreign()


def test_weights_whose_own_vocabulary_has_other_ids_are_refused(bert, tmp_path):
  run(f"--from={bert}", f"--to={tmp_path / 'own'}")
  other = shutil.copytree(bert, tmp_path / "other")
  tokenizer = json.loads((other / "tokenizer.json").read_text())
  vocabulary = tokenizer["model"]["vocab"]
  vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
  (other / "tokenizer.json").write_text(json.dumps(tokenizer))
  with pytest.raises(UserError, match="gives words other ids than the configured one"):
    train(
      f"--gin_file={tmp_path / 'own' / 'model.gin'}",
      *train_flags(tmp_path),
      f"--gin.INITIAL_CHECKPOINT_PATH={other}",
      f"--gin.MODEL_DIR={tmp_path / 'run'}",
    )
