"""What a fusion is fitted on: how deep each head is searched, and how many points and pairs are looked at."""

from typing import Final, NamedTuple

from retrieval_jax.errors import UserError


class FusionOptions(NamedTuple):
  """depth: results of each head. Fit with the depth that is searched with: candidates are then of one kind.

  max_points: points of the split, drawn evenly if there are more.
  max_pairs: candidates that a model is fitted on. If there are more, those that are no labels are drawn evenly, and each
    counts for those that are left out: probabilities stay what they were.
  use_propensity: whether the model sees how rare a label is in training (PairFeatures.log_inverse_propensity). It learns
    how often rare labels hold there; where a test set has more of them, as sets do whose labels had to occur in both, it
    ranks them too low. On xc_yso_titles_small (MiniLM, 150 steps of classifiers, fit_linear) that is P@1 +2.1 on held-out
    points and -0.4 on the test set, against +0.7 and +0.4 without it.
  seed: of what is drawn.
  """

  depth: int = 300
  max_points: int = 75_000
  max_pairs: int = 5_000_000
  use_propensity: bool = False
  seed: int = 0

  def check(self) -> None:
    """Raises UserError for numbers that cannot be."""
    for macro, value, least in (
      ("FUSION_DEPTH", self.depth, 1),
      ("FUSION_POINTS", self.max_points, 2),
      ("FUSION_PAIRS", self.max_pairs, 2),
      ("FUSION_SEED", self.seed, 0),
    ):
      if type(value) is not int or value < least:
        raise UserError(f"{macro}={value!r}: expected a whole number of at least {least}.")


DEFAULTS: Final = FusionOptions()
