"""Hard text through both vocabularies and through seqio: the ids of Hugging Face, whatever is written in it."""

import pathlib
import unicodedata
from typing import Any

import pytest
from hard_text import HARD, LONGEST, SENTENCEPIECE_ALONE

from retrieval_jax.data.vocabularies import SentencePiece, Vocabulary, WordPiece, train_sentencepiece
from retrieval_jax.errors import UserError

transformers = pytest.importorskip("transformers")
LETTERS = sorted(
  {
    letter
    for text in HARD.values()
    for form in ("NFC", "NFD", "NFKC")
    for letter in unicodedata.normalize(form, text + text.lower())
  }
  - set(" \t\n\r\0")
)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A vocab.txt in which every letter of the hard texts has an id."""
  path = tmp_path_factory.mktemp("bert") / "vocab.txt"
  letters = [letter for letter in LETTERS if not letter.isspace() and letter.isprintable()]
  pieces = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *letters,
    *(f"##{letter}" for letter in letters),
    "##afe",
  ]
  path.write_text("\n".join(pieces) + "\n", "utf-8")
  return path


@pytest.fixture(scope="session")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with a spiece.model that knows the letters of the hard texts, and a tokenizer.json of the same."""
  folder = tmp_path_factory.mktemp("t5")
  texts = [text[:200] for text in HARD.values() if text.strip()] * 20
  train_sentencepiece(texts, folder / "spiece.model", vocab_size=160, character_coverage=1.0)
  transformers.T5Tokenizer.from_pretrained(folder).save_pretrained(folder / "json")
  return folder


def theirs(tokenizer: Any, text: Any) -> Any:
  return tokenizer(text, verbose=False).input_ids


def check_seqio(vocabulary: Vocabulary, text: str, ids: list[int]) -> None:
  """Asserts that seqio's Python and TensorFlow sides give `ids`, none of which is special."""
  through = vocabulary.as_seqio()
  assert list(through.encode(text)) == ids
  assert through.encode_tf(text).numpy().tolist() == ids


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("name", HARD)
def test_word_piece_of_a_word_list_equals_bert_tokenizer(words: pathlib.Path, name: str, lowercase: bool):
  bert = transformers.BertTokenizer.from_pretrained(words.parent, do_lower_case=lowercase)
  vocabulary = WordPiece(str(words), lowercase=lowercase)
  ids = theirs(bert, HARD[name])
  assert vocabulary.encode_ragged([HARD[name]], length=LONGEST)[0].tolist() == ids
  check_seqio(vocabulary, HARD[name], ids[1:-1])
  assert vocabulary.encode([HARD[name]], length=8)[0].tolist() == [*ids[:7], ids[-1]][: len(ids)] + [0] * (
    8 - len(ids)
  )


@pytest.mark.parametrize("name", HARD)
def test_word_piece_of_a_tokenizer_json_equals_tokenizers(
  words: pathlib.Path, tmp_path: pathlib.Path, name: str
):
  bert = transformers.BertTokenizer.from_pretrained(words.parent)
  bert.save_pretrained(tmp_path)
  vocabulary = WordPiece(str(tmp_path / "tokenizer.json"))
  assert vocabulary.encode_ragged([HARD[name]], length=LONGEST)[0].tolist() == theirs(bert, HARD[name])
  check_seqio(vocabulary, HARD[name], theirs(bert, HARD[name])[1:-1])


@pytest.mark.parametrize("name", HARD)
def test_sentence_piece_of_a_tokenizer_json_equals_t5_tokenizer(pieces: pathlib.Path, name: str):
  ids = theirs(transformers.T5Tokenizer.from_pretrained(pieces), HARD[name])
  vocabulary = SentencePiece(str(pieces / "json" / "tokenizer.json"))
  assert vocabulary.encode_ragged([HARD[name]], length=LONGEST)[0].tolist() == ids
  check_seqio(vocabulary, HARD[name], ids[:-1])


@pytest.mark.parametrize("name", HARD)
def test_sentence_piece_with_special_tokens_equals_t5_tokenizer(pieces: pathlib.Path, name: str):
  ids = theirs(transformers.T5Tokenizer.from_pretrained(pieces), HARD[name])
  vocabulary = SentencePiece(str(pieces / "spiece.model"), extra_ids=100, special_tokens=True)
  ours = vocabulary.encode_ragged([HARD[name]], length=LONGEST)[0].tolist()
  assert (ours == ids) is (name not in SENTENCEPIECE_ALONE)
  assert vocabulary.encode([HARD[name]], length=8)[0].tolist() == [*ours[:7], 1][: len(ours)] + [0] * (
    8 - len(ours)
  )
  check_seqio(vocabulary, HARD[name], ours[:-1])


@pytest.mark.parametrize("extra_ids", [0, 100])
@pytest.mark.parametrize("name", HARD)
def test_sentence_piece_by_default_equals_seqio(pieces: pathlib.Path, name: str, extra_ids: int):
  import seqio

  path, text = str(pieces / "spiece.model"), HARD[name]
  vocabulary = SentencePiece(path, extra_ids=extra_ids)
  seqios = seqio.SentencePieceVocabulary(path, extra_ids=extra_ids)
  assert vocabulary.as_seqio() == seqios
  assert vocabulary.vocab_size == seqios.vocab_size
  ids = [*seqios.encode(text), 1]
  assert vocabulary.encode_ragged([text], length=LONGEST)[0].tolist() == ids
  special = name in ("special tokens of T5", "sentinels", *SENTENCEPIECE_ALONE)
  assert (ids == theirs(transformers.T5Tokenizer.from_pretrained(pieces), text)) is not special


def test_where_sentence_piece_and_hugging_face_differ(pieces: pathlib.Path):
  path = str(pieces / "spiece.model")
  special = SentencePiece(path, extra_ids=100, special_tokens=True)
  sentinels = SentencePiece(path, extra_ids=100)
  assert special.encode(["</s>"], length=4).tolist() == [[1, 1, 0, 0]]
  letter = special.encode_ragged(["a"], length=3)[0][:-1].tolist()
  assert special.encode_ragged(["a<extra_id_0>"], length=64)[0].tolist() == [*letter, 259, 1]
  assert 1 not in sentinels.encode_ragged(["</s>"], length=64)[0][:-1]
  assert 259 in sentinels.encode_ragged(["a <extra_id_0>b"], length=64)[0]
  assert 259 not in sentinels.encode_ragged(["a<extra_id_0>b"], length=64)[0]
  jamo = SentencePiece(path).encode_ragged(["\u1112\u1161\u11ab"], length=64)[0]
  assert jamo.tolist() == SentencePiece(path).encode_ragged(["\ud55c"], length=64)[0].tolist()


@pytest.mark.parametrize(
  "text", ["[PAD]", "a [PAD] b[PAD]c", "<pad>", "a <pad> b<pad>c", "[PAD]<pad>", "[pad]"]
)
def test_a_padding_token_in_a_text_is_text(
  words: pathlib.Path, pieces: pathlib.Path, tmp_path: pathlib.Path, text: str
):
  transformers.BertTokenizer.from_pretrained(words.parent).save_pretrained(tmp_path)
  for vocabulary in (
    WordPiece(str(words)),
    WordPiece(str(tmp_path / "tokenizer.json")),
    SentencePiece(str(pieces / "spiece.model")),
    SentencePiece(str(pieces / "spiece.model"), extra_ids=100, special_tokens=True),
    SentencePiece(str(pieces / "json" / "tokenizer.json")),
  ):
    row = vocabulary.encode_ragged([text], length=64)[0]
    assert 0 not in row, vocabulary
    assert len(row) > 3, vocabulary
    check_seqio(
      vocabulary, text, row[1:-1].tolist() if isinstance(vocabulary, WordPiece) else row[:-1].tolist()
    )
    assert vocabulary.as_seqio().decode([0, *row[-2:].tolist(), 0]) == vocabulary.decode(row[-2:])


def test_published_vocabularies(data_dir: pathlib.Path, tmp_path: pathlib.Path):
  (tmp_path / "vocab.txt").write_bytes((data_dir / "vocab/bert_base_uncased_vocab.txt").read_bytes())
  (tmp_path / "spiece.model").write_bytes((data_dir / "vocab/t5_spiece.model").read_bytes())
  bert, t5 = (
    kind.from_pretrained(tmp_path) for kind in (transformers.BertTokenizer, transformers.T5Tokenizer)
  )
  t5.save_pretrained(tmp_path / "json")
  ours = [
    (WordPiece(str(tmp_path / "vocab.txt")), bert, 30522),
    (SentencePiece(str(tmp_path / "spiece.model"), extra_ids=100, special_tokens=True), t5, 32100),
    (SentencePiece(str(tmp_path / "json" / "tokenizer.json")), t5, 32100),
  ]
  for vocabulary, tokenizer, size in ours:
    assert vocabulary.vocab_size == size
    alone = SENTENCEPIECE_ALONE if vocabulary is ours[1][0] else ()
    texts = [HARD[name] for name in HARD if name not in alone]
    rows = vocabulary.encode_ragged(texts, length=LONGEST)
    assert [row.tolist() for row in rows] == theirs(tokenizer, texts)


@pytest.mark.parametrize(
  "content, message",
  [
    ("a\n[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"no vocab\.txt of a BERT: \[PAD\] has id 1, expected 0"),
    (
      "[PAD]\n[UNK]\n[CLS]\n",
      r"no vocab\.txt of a BERT: no line \[SEP\]\. A vocab\.txt holds one token a line",
    ),
    ('{"a": 1}', r"not a Hugging Face tokenizer\.json \(KeyError: 'model'\)"),
    ("{", r"not a Hugging Face tokenizer\.json \(JSONDecodeError"),
  ],
)
def test_files_that_are_no_vocabulary_of_a_bert(tmp_path: pathlib.Path, content: str, message: str):
  (tmp_path / "vocab.txt").write_text(content)
  with pytest.raises(UserError, match=message):
    WordPiece(str(tmp_path / "vocab.txt"))


def test_windows_line_ends_in_a_word_list(tmp_path: pathlib.Path, words: pathlib.Path):
  (tmp_path / "vocab.txt").write_bytes(words.read_bytes().replace(b"\n", b"\r\n"))
  text = ["the cafe"]
  ours, crlf = WordPiece(str(words)), WordPiece(str(tmp_path / "vocab.txt"))
  assert crlf.encode(text, length=16).tolist() == ours.encode(text, length=16).tolist()


def test_options_that_do_not_belong_to_the_file(
  words: pathlib.Path, pieces: pathlib.Path, tmp_path: pathlib.Path
):
  transformers.BertTokenizer.from_pretrained(words.parent).save_pretrained(tmp_path)
  with pytest.raises(UserError, match=r"lowercase=False is for a vocab\.txt; a tokenizer\.json says itself"):
    WordPiece(str(tmp_path / "tokenizer.json"), lowercase=False)
  options: Any
  for options in ({"extra_ids": 100}, {"special_tokens": True}):
    with pytest.raises(UserError, match=r"are for a SentencePiece model file; a tokenizer\.json has its own"):
      SentencePiece(str(pieces / "json" / "tokenizer.json"), **options)
  extra_ids: Any
  for extra_ids in (-1, True, 1.5):
    with pytest.raises(UserError, match=f"extra_ids={extra_ids}: expected a whole number of at least 0"):
      SentencePiece(str(pieces / "spiece.model"), extra_ids=extra_ids)
  with pytest.raises(
    UserError, match=r"its model is WordPiece, expected Unigram\. Use a T5's tokenizer\.json"
  ):
    SentencePiece(str(tmp_path / "tokenizer.json"))
  with pytest.raises(UserError, match=r"the padding token \[PAD\] has id None, expected 0"):
    WordPiece(str(pieces / "json" / "tokenizer.json"))


def test_options_are_in_the_fingerprint(words: pathlib.Path, pieces: pathlib.Path):
  model = str(pieces / "spiece.model")
  marks = {
    SentencePiece(model, extra_ids, special).fingerprint
    for extra_ids in (0, 100)
    for special in (False, True)
  } | {WordPiece(str(words), lowercase).fingerprint for lowercase in (True, False)}
  assert len(marks) == 6
  assert repr(SentencePiece(model)) == f"SentencePiece({model!r})"
  assert (
    repr(SentencePiece(model, 100, True)) == f"SentencePiece({model!r}, extra_ids=100, special_tokens=True)"
  )
  assert repr(WordPiece(str(words), lowercase=False)) == f"WordPiece({str(words)!r}, lowercase=False)"
