"""Texts on which tokenizers differ, by what is hard about them."""

from typing import Final

HARD: Final = {
  "empty": "",
  "spaces alone": "   ",
  "leading and trailing spaces": "  the cat  ",
  "several spaces": "the    red   cat",
  "tab and line ends": "the\tred\ncat\r\ndog\x0b\x0cend",
  "spaces of Unicode": "a\u00a0b\u1680c\u2009d\u2028e\u2029f\u202fg\u3000h",
  "accents": "Café déjà vu, naïve Ångström Straße ẞ İstanbul \u0131",
  "combining": "Cafe\u0301 n\u0303 a\u0323 \u0301 x\u0301\u0302",
  "CJK": "東京は日本の首都です 汉语 한국어 カタカナ",
  "other scripts": "مرحبا بالعالم नमस्ते สวัสดี שלום",
  "emoji": "I 😀 you 👩\u200d👩\u200d👧 🇩🇪 ✊🏽 ❤\ufe0f",
  "zero width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f co\u00adop \u202eb\u200f",
  "control": "a\x00b\x01c\x07d\x1be\x7ff g\x80h\x9fi",
  "compatibility": "ﬁ ﬀ ½ ① \uff21\uff22\uff11\uff12 \U0001d4b3 ﷺ",
  "next line": "a\x85b",
  "two marks on a letter": "a\u0323\u0307 \u24e4\u032b かﾞ",
  "letters of Hangul": "\u1112\u1161\u11ab",
  "private use": "a\ue000b\U000f0000c \ufffd \uffff",
  "punctuation": "“q” \u2018q\u2019 … — \u2013 ~ ^ ` \\ { } don't U.S.A.",
  "word begin of SentencePiece": "▁the a▁b ▁ c",
  "numbers": "3.14 1,000 1e-5 ² ٣",
  "special tokens of BERT": "a [SEP] b[CLS]c [MASK] [UNK] [sep] [ MASK ]",
  "special tokens of T5": "a </s> b</s>c <unk> </S> </s></s>",
  "sentinels": "<extra_id_0> a <extra_id_1> b<extra_id_12>c <extra_id_99><extra_id_100>",
  "a long line": "the café 漢 " * 10_000,
  "a long word": "a" * 100_000,
}
# Where the normaliser of `tokenizers` does not do what SentencePiece does.
SENTENCEPIECE_ALONE: Final = ("next line", "two marks on a letter", "letters of Hangul")
LONGEST: Final = 200_000
