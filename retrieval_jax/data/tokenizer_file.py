"""Files of Hugging Face tokenizers (tokenizer.json, vocab.txt), read so that id 0 is padding and nothing else."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from retrieval_jax.errors import UserError

if TYPE_CHECKING:
  import tokenizers

BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class TokenizerFile:
  """Pieces and ids of a Hugging Face tokenizer. It has no state: several threads may use one.

  Special tokens written in a text are special tokens, as Hugging Face has it, but for the padding token, which is
  read as plain text: its id 0 inside a row would be taken for padding by everything that counts or masks.

  Attributes: vocab_size (the highest id plus 1), end_id, unknown_id.
  """

  def __init__(self, tokenizer: "tokenizers.Tokenizer", *, end: str, unknown: str):
    self._tokenizer = tokenizer
    self.vocab_size = max(tokenizer.get_vocab().values()) + 1
    self.end_id, self.unknown_id = tokenizer.token_to_id(end), tokenizer.token_to_id(unknown)

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text between its special tokens."""
    return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

  def pieces(self, text: str) -> list[int]:
    """Returns the ids of a text alone."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids, without special tokens and padding."""
    return self._tokenizer.decode([int(i) for i in ids if i != 0], skip_special_tokens=True)


def is_json(data: bytes) -> bool:
  """Returns whether a file's bytes can be a tokenizer.json: SentencePiece models and vocab.txt begin otherwise."""
  return data.lstrip()[:1] == b"{"


def bert_from_json(data: bytes, path: str) -> TokenizerFile:
  """Returns the tokenizer of a BERT's tokenizer.json.

  Raises: UserError if it is none, if the id of [PAD] is not 0, or if it does not put [CLS] and [SEP] around a text.
  """
  tokenizer = _from_json(data, path, pad="[PAD]", advice="Use a BERT vocabulary.")
  ends = tokenizer.encode("").ids
  if len(ends) != 2 or 0 in ends:
    raise UserError(
      f"{path}: an empty text gives the ids {ends}, expected two: [CLS] and [SEP]. Use the tokenizer.json of a BERT."
    )
  return TokenizerFile(tokenizer, end="[SEP]", unknown="[UNK]")


def t5_from_json(data: bytes, path: str) -> TokenizerFile:
  """Returns the tokenizer of a T5's tokenizer.json.

  Raises: UserError if it is none, if its model is not Unigram, if <pad> is not 0, or if </s> is not 1 or not the end.
  """
  tokenizer = _from_json(data, path, pad="<pad>", advice="Use a T5's tokenizer.json.", model="Unigram")
  if tokenizer.encode("").ids != [1] or tokenizer.token_to_id("</s>") != 1:
    raise UserError(
      f"{path}: an empty text gives the ids {tokenizer.encode('').ids}, expected [1]: </s> alone. "
      "Use the tokenizer.json of a T5."
    )
  return TokenizerFile(tokenizer, end="</s>", unknown="<unk>")


def bert_from_words(data: bytes, path: str, *, lowercase: bool) -> TokenizerFile:
  """Returns BERT's tokenizer over a vocab.txt: one token a line, its id is the line's number from 0.

  Raises: UserError if it is no such list, or if [PAD] is not its first line.
  """
  from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

  try:
    lines = data.decode("utf-8").removesuffix("\n").split("\n")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{path}: not a Hugging Face tokenizer.json and no vocab.txt ({error}). Give a file of that name of the model."
    ) from error
  words = {line.removesuffix("\r"): number for number, line in enumerate(lines)}
  missing = [token for token in BERT_SPECIAL[:4] if token not in words]
  if missing or words["[PAD]"] != 0:
    problem = f"no line {' or '.join(missing)}" if missing else f"[PAD] has id {words['[PAD]']}, expected 0"
    raise UserError(
      f"{path}: not a Hugging Face tokenizer.json and no vocab.txt of a BERT: {problem}. A vocab.txt holds one "
      "token a line, first [PAD], among them [UNK], [CLS] and [SEP]."
    )
  tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
  tokenizer.add_special_tokens([token for token in BERT_SPECIAL[1:] if token in words])
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece()
  tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[(token, words[token]) for token in ("[CLS]", "[SEP]")]
  )
  return TokenizerFile(tokenizer, end="[SEP]", unknown="[UNK]")


def _from_json(
  data: bytes, path: str, *, pad: str, advice: str, model: str | None = None
) -> "tokenizers.Tokenizer":
  """Returns the tokenizer of a tokenizer.json, in which `pad` is written as text."""
  import tokenizers

  try:
    content = json.loads(data)
    kind, words, added = content["model"]["type"], content["model"]["vocab"], content["added_tokens"]
    ids = dict(words) if isinstance(words, dict) else {word: id for id, (word, _) in enumerate(words)}
    ids |= {token["content"]: token["id"] for token in added}
  except (ValueError, KeyError, TypeError) as error:
    raise _no_tokenizer(path, f"{type(error).__name__}: {error}") from error
  if model not in (None, kind):
    raise UserError(f"{path}: its model is {kind}, expected {model}. {advice}")
  if ids.get(pad) != 0:
    raise UserError(
      f"{path}: the padding token {pad} has id {ids.get(pad)}, expected 0: padding is recognised by id 0 everywhere. "
      f"{advice}"
    )
  content["padding"] = content["truncation"] = None  # all-MiniLM-L6-v2's file has both switched on, to 128
  content["added_tokens"] = [token for token in added if token["content"] != pad]
  if not isinstance(words, dict):
    words[0][0] = (
      f" {pad}"  # a Unigram finds all its words in a text, but none with a space: those are "▁" by then
    )
  try:
    return tokenizers.Tokenizer.from_str(json.dumps(content))
  except Exception as error:  # tokenizers raises bare Exception
    raise _no_tokenizer(path, str(error)) from error


def _no_tokenizer(path: str, problem: str) -> UserError:
  return UserError(
    f"{path}: not a Hugging Face tokenizer.json ({problem}). Give the file `tokenizer.json` of the model."
  )
