"""Tokenizer files: what is read from them, and that transformers gives our ids for what is written."""

import json
import random

import pytest
from toy_models import write_word_piece

from retrieval_jax.data.vocabularies import SentencePiece, WordPiece, train_sentencepiece
from retrieval_jax.errors import UserError
from retrieval_jax.interop import sentencepiece_tokenizer
from retrieval_jax.interop.foreign import TextSpec
from retrieval_jax.interop.huggingface_tokenizer import read_text, write_tokenizer

HARD = [
  "",
  "   ",
  " a  b ",
  "The quick brown fox, jumps!",
  "naïve café",
  "nai\u0308ve cafe\u0301 e\u0301\u0302 a\u0323\u0307",
  "\u1112\u1161\u11ab\u1100\u116e\u11a8 한국어",
  "日本語のテキスト。\u3000全角\uff5e",
  "😀 👩\u200d👩\u200d👧 x",
  "zero\u200bwidth\u200djoin\ufeff\xad",
  "\x01control\x7f\x00",
  "tab\tnew\nline\r\n",
  "<s> </s>in text</s> <unk> </s",
  "\u2581under\u2581score \u2581 x",
  "\ufb01 \xbd \u2167 \u2460 \u017f \u0130 \uff21\uff11",
  "\xa0no\xa0break\xa0",
  "العَرَبِيَّة क्षि",
  "\u202eabc\u202c \U000e0041 \ue123",
  "word " * 300,
]


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory):
  path = tmp_path_factory.mktemp("spm") / "toy.model"
  words = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dogs",
    "text",
    "under",
    "score",
    "naïve",
    "café",
  ]
  words += ["</b>", "<i>", "$1", "1/2", "word"]
  rng = random.Random(0)
  train_sentencepiece((" ".join(rng.choices(words, k=8)) for _ in range(400)), path, vocab_size=50)
  return path


def auto_tokenizer(folder, model_type):
  transformers = pytest.importorskip("transformers")
  (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
  return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("model_type", ["t5", "umt5"])
def test_sentencepiece_in_transformers(tmp_path, sentencepiece_model, model_type):
  write_tokenizer(tmp_path, TextSpec("sentence_piece", sentencepiece_model), max_length=64, token_types=False)
  theirs = auto_tokenizer(tmp_path, model_type)
  ours = SentencePiece(str(sentencepiece_model))
  for text in HARD:
    assert (
      theirs(text, truncation=False)["input_ids"] == ours.encode_ragged([text], length=10_000)[0].tolist()
    )
  assert theirs("word " * 300, truncation=True)["input_ids"][-1] == 1
  assert len(theirs("word " * 300, truncation=True)["input_ids"]) == 64
  padded = theirs(["word", "word word word word"], padding=True)
  assert padded["input_ids"][0][-1] == 0
  assert set(padded) == {"input_ids", "attention_mask"}
  assert (tmp_path / "spiece.model").read_bytes() == sentencepiece_model.read_bytes()
  again = read_text(tmp_path, family="t5", max_positions=None)
  assert again == TextSpec("sentence_piece", tmp_path / "spiece.model", 64)


def sentencepiece_differences(path, texts):
  import tokenizers

  model = sentencepiece_tokenizer.read_model(path)
  theirs = tokenizers.Tokenizer.from_str(sentencepiece_tokenizer.tokenizer_json(model))
  theirs.encode_special_tokens = True
  ours = SentencePiece(str(path)).encode_ragged(texts, length=100_000)
  return [text for text, ids in zip(texts, ours, strict=True) if theirs.encode(text).ids != ids.tolist()]


def test_the_real_t5_vocabulary(data_dir):
  path = data_dir / "vocab" / "t5_spiece.model"
  rng = random.Random(0)
  letters = [chr(i) for i in range(0x20, 0x3000) if chr(i).isprintable()]

  def line():
    return "".join(
      rng.choice(letters) if rng.random() < 0.3 else rng.choice("ab  </s>.,xyz") for _ in range(30)
    )

  texts = [*HARD, *(line() for _ in range(1000))]
  # What is left are ties between two ways to cut a word, which the two sum in another order.
  assert len(sentencepiece_differences(path, texts)) <= 2
  assert not sentencepiece_differences(path, HARD)


def test_special_tokens_that_a_vocabulary_could_spell(tmp_path):
  """Every letter of </s> is in a piece: it is cut where no piece goes on."""
  path = tmp_path / "spelled.model"
  train_sentencepiece(["</b> <s> s/> a s a <b"] * 50, path, vocab_size=12)
  texts = ["</s>", "a </s> a", "<</s>>", "s</s", "<pad>", "a<unk>"]
  assert not sentencepiece_differences(path, texts)


@pytest.mark.parametrize(
  "options",
  [
    {"byte_fallback": True, "vocab_size": 300},
    {"user_defined_symbols": ["<extra_id_0>", "@@"]},
    {"normalization_rule_name": "identity"},
    {"normalization_rule_name": "nmt_nfkc_cf"},
    {"remove_extra_whitespaces": False},
    {"add_dummy_prefix": False},
    {"split_by_whitespace": False},
  ],
)
def test_other_ways_to_train_a_vocabulary(tmp_path, options):
  import sentencepiece

  rng = random.Random(0)
  words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "123", "naïve", "café"]
  sentencepiece.SentencePieceTrainer.Train(
    sentence_iterator=(" ".join(rng.choices(words, k=8)) for _ in range(400)),
    model_prefix=str(tmp_path / "toy"),
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    minloglevel=2,
    **{"vocab_size": 45, **options},
  )
  texts = [*HARD, "a <extra_id_0> b<extra_id_0>", "@@ the@@@", " the \n fox "]
  if options.get("remove_extra_whitespaces") is False:
    texts = [
      text for text in texts if "\r\n" not in text
    ]  # tokenizers reads the two as one sign, so as one space
  assert not sentencepiece_differences(tmp_path / "toy.model", texts)


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_word_piece_in_transformers(tmp_path, model_type):
  (tmp_path / "from").mkdir()
  (tmp_path / "to").mkdir()
  path = write_word_piece(tmp_path / "from")
  types = model_type == "bert"
  write_tokenizer(tmp_path / "to", TextSpec("word_piece", path), max_length=16, token_types=types)
  theirs = auto_tokenizer(tmp_path / "to", model_type)
  ours = WordPiece(str(path))
  for text in [*HARD, "Abba [SEP] cd [MASK]"]:
    assert (
      theirs(text, truncation=False)["input_ids"] == ours.encode_ragged([text], length=10_000)[0].tolist()
    )
  assert ("token_type_ids" in theirs("a")) == types
  assert len(theirs("a " * 300, truncation=True)["input_ids"]) == 16
  assert theirs.mask_token_id == 4
  assert (tmp_path / "to" / "vocab.txt").read_text().splitlines()[:3] == ["[PAD]", "[UNK]", "[CLS]"]


def test_a_vocab_txt_in_transformers(tmp_path):
  (tmp_path / "from").mkdir()
  (tmp_path / "to").mkdir()
  path = tmp_path / "from" / "vocab.txt"
  path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde", "##a", "##b"]) + "\n")
  text = read_text(path.parent, family="bert", max_positions=48)
  assert text == TextSpec("word_piece", path, 48)
  write_tokenizer(tmp_path / "to", text, max_length=48, token_types=True)
  theirs = auto_tokenizer(tmp_path / "to", "bert")
  ours = WordPiece(str(path))
  for text in ["", "Ab ba", "é [SEP] c"]:
    assert theirs(text)["input_ids"] == ours.encode_ragged([text], length=100)[0].tolist()


def test_a_cased_vocab_txt_is_read_as_one_and_other_options_are_left_to_the_caller(tmp_path):
  (tmp_path / "vocab.txt").write_text("[PAD]\n")
  (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
  cased = TextSpec("word_piece", tmp_path / "vocab.txt", options={"lowercase": False})
  assert read_text(tmp_path, family="bert", max_positions=None) == cased
  (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": true}')
  assert read_text(tmp_path, family="bert", max_positions=None) == TextSpec()


@pytest.mark.parametrize(
  "limit, positions, expected",
  [(512, 48, 48), (32, 48, 32), (1e30, 48, 48), (1e30, None, None), (None, None, None), (512, None, 512)],
)
def test_max_length(tmp_path, limit, positions, expected):
  (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
  assert read_text(tmp_path, family="t5", max_positions=positions).max_length == expected


def test_a_t5_with_only_a_tokenizer_json(tmp_path, sentencepiece_model):
  (tmp_path / "from").mkdir()
  (tmp_path / "to").mkdir()
  model = sentencepiece_tokenizer.read_model(sentencepiece_model)
  path = tmp_path / "from" / "tokenizer.json"
  path.write_text(sentencepiece_tokenizer.tokenizer_json(model))
  text = read_text(path.parent, family="t5", max_positions=None)
  assert text == TextSpec("sentence_piece", path)
  write_tokenizer(tmp_path / "to", text, max_length=None, token_types=False)
  theirs, ours = auto_tokenizer(tmp_path / "to", "t5"), SentencePiece(str(path))
  assert (
    theirs("the fox</s> text")["input_ids"] == ours.encode_ragged(["the fox</s> text"], length=99)[0].tolist()
  )


def test_vocabularies_that_cannot_be_written(tmp_path):
  def write(kind, path):
    write_tokenizer(tmp_path, TextSpec(kind, path), max_length=None, token_types=False)

  with pytest.raises(UserError, match="the vocabulary's file is not there"):
    write("sentence_piece", tmp_path / "absent.model")
  (tmp_path / "bad.model").write_bytes(b"<html>")
  with pytest.raises(UserError, match=r"bad\.model: not a SentencePiece model"):
    write("sentence_piece", tmp_path / "bad.model")
  (tmp_path / "empty.model").write_bytes(b"")
  with pytest.raises(UserError, match=r"empty\.model: (not a SentencePiece model|its pad id)"):
    write("sentence_piece", tmp_path / "empty.model")
  (tmp_path / "bad.json").write_text("{}")
  with pytest.raises(UserError, match=r"bad\.json: not the tokenizer\.json of a T5"):
    write("sentence_piece", tmp_path / "bad.json")
  (tmp_path / "list.json").write_text('{"model": {"vocab": []}}')
  with pytest.raises(UserError, match=r"list\.json: not the tokenizer\.json of a BERT"):
    write("word_piece", tmp_path / "list.json")
