"""A hash of numbers that stands for a draw at random: what a batch draws is a pure function of seed, epoch and row."""

import numpy as np
from jaxtyping import Int, UInt


def mixed(rows: Int[np.ndarray, "q"], *words: int | Int[np.ndarray, "q"]) -> UInt[np.ndarray, "q"]:
  """Returns a uint64 hash of (words, row) for each row: SplitMix64's finalizer applied once a word.

  A word is one for all rows, or an array with one for each.

  Source: Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators", figure 15.

  Example: `mixed(np.arange(3), seed, epoch) % 10` draws a number from 0 to 9 for each row.
  """
  state = np.zeros(len(rows), np.uint64)
  for word in (*words, rows):
    state = state + np.asarray(word).astype(np.int64).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
  return state
