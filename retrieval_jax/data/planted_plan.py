"""The plan of an artificial link graph: topics, popular items in them, and links drawn by hashes of seed and item.

Every draw is a pure function of the seed, its purpose and the item (row_hash.py): the graph depends on no library's generator, and
is drawn a block at a time.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data.row_hash import mixed
from retrieval_jax.errors import UserError

GROUP, RELATED = 10, 3  # topics in a group; a topic is related to the next 3 of its group
SAME, NEAR = 0.65, 0.25  # the draws that stay in the topic, or go to a related one; the others go anywhere
ZIPF = 1.2  # the item of rank r = 1, 2, ... is drawn in proportion to r ** -ZIPF
DRAWS, MOST_DRAWS = 10.7, 100  # an item's draws: their mean, and what cuts them; equal ones are one link
DEV, TEST = 0.01, 0.1
SPLITS = ("train", "dev", "test")
LARGEST = 10_000_000  # items
ORDER, COUNT, KIND, TOPIC, RANK, SPLIT, TEXT, SAMPLE = range(8)  # what a hash is drawn for


class Recipe(NamedTuple):
  """How large a planted graph is.

  items: nodes, a few of which have no link. topics: a multiple of 10, at most a fifth of the items. seed: of every draw, 64 bits.

  Example: `Recipe(items=300_000)`.
  """

  items: int = 300_000
  topics: int = 200
  seed: int = 0

  def check(self) -> None:
    """Raises: UserError for numbers that make no graph."""
    if any(type(number) is not int for number in self):
      raise UserError(
        f"a planted graph of {self.items!r} items and {self.topics!r} topics, seed {self.seed!r}: expected whole numbers."
      )
    if not -(2**63) <= self.seed < 2**63:
      raise UserError(
        f"a planted graph of seed {self.seed}: expected one of 64 bits, from -2**63 to 2**63 - 1."
      )
    if self.topics < GROUP or self.topics % GROUP or not 5 * self.topics <= self.items <= LARGEST:
      raise UserError(
        f"a planted graph of {self.items:,} items and {self.topics:,} topics: expected a multiple of {GROUP} topics, and from "
        f"5 items a topic to {LARGEST:,} items."
      )

  def uniform(self, rows: Int[np.ndarray, "e"], purpose: int) -> Float[np.ndarray, "e"]:
    """Returns a number from 0 to below 1 for each row: a pure function of seed, purpose and row."""
    return (mixed(rows, self.seed, purpose) >> np.uint64(11)) * 2.0**-53

  def whole(self, rows: Int[np.ndarray, "e"], purpose: int, below: int) -> Int[np.ndarray, "e"]:
    """Returns a whole number from 0 to below `below` for each row, in the same way."""
    return (mixed(rows, self.seed, purpose) % np.uint64(below)).astype(np.int64)


class Plan(NamedTuple):
  """What is drawn once for a graph. The item of place k is the (k // topics)th of the topic k % topics.

  order: the item of each place, the most popular first. places: the place of each item. decay: of place or rank k, (k + 1) **
  -ZIPF. sums: of decay, up to each k.
  """

  recipe: Recipe
  order: Int[np.ndarray, "n"]
  places: Int[np.ndarray, "n"]
  decay: Float[np.ndarray, "n"]
  sums: Float[np.ndarray, "n"]

  @classmethod
  def of(cls, recipe: Recipe) -> "Plan":
    """Returns the plan of a graph. Memory: 32 bytes an item."""
    items = np.arange(recipe.items)
    order = np.argsort(mixed(items, recipe.seed, ORDER), kind="stable")
    places = np.empty_like(order)
    places[order] = items
    decay = (items + 1.0) ** -ZIPF
    return cls(recipe, order, places, decay, np.cumsum(decay))

  def topics_of(self, items: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e"]:
    """Returns the topic of each item."""
    return self.places[items] % self.recipe.topics

  def sizes(self, topics: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e"]:
    """Returns the number of items of each topic: they differ by 1 at most."""
    return (self.recipe.items - topics - 1) // self.recipe.topics + 1

  def links(self, start: int, stop: int) -> Int[np.ndarray, "e 2"]:
    """Returns the links (source, target) from the items start, ..., stop - 1, ascending: each once, none to itself."""
    recipe, items = self.recipe, np.arange(start, stop)
    wanted = np.ceil(-DRAWS * np.log1p(-recipe.uniform(items, COUNT)))
    counts = np.clip(wanted, 1, MOST_DRAWS).astype(np.int64)
    sources = np.repeat(items, counts)
    draws = sources * MOST_DRAWS + np.arange(len(sources)) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = np.unique(sources * recipe.items + self.targets(self.topics_of(sources), draws))
    found = np.stack(np.divmod(keys, recipe.items), axis=1)
    return found[found[:, 0] != found[:, 1]]

  def targets(self, topics: Int[np.ndarray, "e"], draws: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e"]:
    """Returns an item for each draw from an item of the given topic."""
    recipe, kinds = self.recipe, self.recipe.uniform(draws, KIND)
    near = related(topics, recipe.whole(draws, TOPIC, RELATED))
    topics, anywhere = np.where(kinds < SAME, topics, near), kinds >= SAME + NEAR
    sizes = np.where(anywhere, recipe.items, self.sizes(topics))
    aims = recipe.uniform(draws, RANK) * self.sums[sizes - 1]
    ranks = np.minimum(np.searchsorted(self.sums, aims, side="right"), sizes - 1)
    return self.order[np.where(anywhere, ranks, ranks * recipe.topics + topics)]

  def splits(self, links: Int[np.ndarray, "e 2"]) -> Int[np.ndarray, "e"]:
    """Returns for each link the place of its split in SPLITS."""
    drawn = self.recipe.uniform(links[:, 0] * self.recipe.items + links[:, 1], SPLIT)
    return np.where(drawn < TEST, 2, np.where(drawn < TEST + DEV, 1, 0))

  def likelihoods(self, topic: int) -> Float[np.ndarray, "n"]:
    """Returns with which probability a draw from an item of the topic is each item: the best scores there are."""
    scores = (1 - SAME - NEAR) * self.decay / self.sums[-1]
    near = related(np.full(RELATED, topic), np.arange(RELATED))
    for other, share in ((topic, SAME), *((int(other), NEAR / RELATED) for other in near)):
      own = scores[other :: self.recipe.topics]
      own += share * self.decay[: len(own)] / self.sums[len(own) - 1]
    return scores[self.places]


def related(topics: Int[np.ndarray, "e"], which: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e"]:
  """Returns the first, second or third (0, 1, 2) related topic of each.

  Example: `related(np.array([18]), np.array([1]))` is `[10]`: after 19 the group begins again.
  """
  return topics - topics % GROUP + (topics + 1 + which) % GROUP
