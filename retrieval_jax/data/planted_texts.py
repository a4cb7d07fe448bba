"""The titles and categories of a planted graph's items: they tell the topic, with noise, and nothing of popularity."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from retrieval_jax.data.planted_plan import GROUP, TEXT, Recipe

TOPIC_WORDS, GROUP_WORDS, COMMON_WORDS = 40, 60, 2000  # words of a topic, of a group, of all
SHORTEST, LONGEST = 3, 6  # words of a title
OF_TOPIC, OF_GROUP = 0.45, 0.2  # the shares of a title's words
TRUE, OF_ITS_GROUP, NOISE = (
  0.7,
  0.4,
  0.3,
)  # how often an item has its topic's category, its group's, one of any topic
HEADER = "id\ttitle\tcategories\n"
SYLLABLES = [first + second for first in "bdfghjklmnprst" for second in "aeiou"]
WORDS = len(SYLLABLES) ** 3
DRAWS = 32  # numbers that an item may draw


def write_rows(items: Int[np.ndarray, "e"], topics: Int[np.ndarray, "e"], recipe: Recipe) -> Iterator[str]:
  """Yields the line of each item under HEADER: its number, title and categories.

  Example: `next(write_rows(np.array([7]), np.array([3]), Recipe()))` is "7\\t<words>\\tt3 g0\\n", or with other categories.
  """
  draws = items[:, None] * DRAWS + np.arange(2 * LONGEST + 5)
  drawn = recipe.uniform(draws.reshape(-1), TEXT).reshape(draws.shape)
  kinds, numbers, others = np.split(drawn, [LONGEST, 2 * LONGEST], axis=1)
  words = _words(kinds, numbers, topics[:, None], recipe.topics)
  lengths = SHORTEST + (others[:, 0] * (LONGEST - SHORTEST + 1)).astype(np.int64)
  strange = (others[:, 4] * recipe.topics).astype(np.int64)
  has = others[:, 1:4] < (TRUE, OF_ITS_GROUP, NOISE)
  for row, (item, topic) in enumerate(zip(items.tolist(), topics.tolist(), strict=True)):
    title = " ".join(word(number) for number in words[row, : lengths[row]].tolist())
    names = (f"t{topic}", f"g{topic // GROUP}", f"t{strange[row]}")
    categories = dict.fromkeys(name for name, there in zip(names, has[row].tolist(), strict=True) if there)
    yield f"{item}\t{title}\t{' '.join(categories)}\n"


def _words(
  kinds: np.ndarray, numbers: np.ndarray, topics: Int[np.ndarray, "e 1"], num_topics: int
) -> Int[np.ndarray, "e w"]:
  """Returns the numbers of words: first those that all share, then those of groups, then those of topics."""
  of_group = COMMON_WORDS + topics // GROUP * GROUP_WORDS + (numbers * GROUP_WORDS).astype(np.int64)
  begin = COMMON_WORDS + num_topics // GROUP * GROUP_WORDS
  of_topic = begin + topics * TOPIC_WORDS + (numbers * TOPIC_WORDS).astype(np.int64)
  common = (numbers**2 * COMMON_WORDS).astype(np.int64)  # the first ones more often
  return np.where(kinds < OF_TOPIC, of_topic, np.where(kinds < OF_TOPIC + OF_GROUP, of_group, common))


def word(number: int) -> str:
  """Returns the word of a number: three syllables, which tell nothing of the words of neighbouring numbers.

  Example: `word(0)` is "bababa".
  """
  number = number * 104_729 % WORDS  # a prime: no two numbers below WORDS share a word
  last, number = number % len(SYLLABLES), number // len(SYLLABLES)
  return SYLLABLES[number // len(SYLLABLES)] + SYLLABLES[number % len(SYLLABLES)] + SYLLABLES[last]
