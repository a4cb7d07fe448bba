"""A source of literal examples and a small tokenizer file, for the tests of the data layer."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from retrieval_jax.data import features

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "red", "green", "blue", "##ish", "?"]


class ListSource(NamedTuple):
  """A Source of literal examples: split -> examples. It counts its readings in the file `log`."""

  data: Mapping[str, Sequence[features.Example]]
  split: str = "train"
  name: str = "toy"
  version: str = "1"
  log: pathlib.Path | None = None
  info: features.TaskInfo = features.TaskInfo()
  paths: Sequence[pathlib.Path] = ()

  def files(self) -> Sequence[pathlib.Path]:
    return self.paths

  def splits(self) -> Sequence[str]:
    return list(self.data)

  def fingerprint(self) -> str:
    return self.version

  def examples(self, split: str) -> Iterator[features.Example]:
    if self.log is not None:
      with open(self.log, "a") as file:
        file.write(f"{split}\n")
    yield from self.data[split]


def write_tokenizer(path: pathlib.Path, words: Sequence[str] = WORDS) -> pathlib.Path:
  """Writes a tokenizer.json that, like all-MiniLM-L6-v2's, has truncation and padding switched on."""
  tokenizer = tokenizers.Tokenizer(
    models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
  )
  tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
  tokenizer.decoder = decoders.WordPiece()
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", words.index("[CLS]")), ("[SEP]", words.index("[SEP]"))]
  )
  tokenizer.enable_truncation(max_length=6)
  tokenizer.enable_padding(length=6)
  tokenizer.save(str(path))
  return path
