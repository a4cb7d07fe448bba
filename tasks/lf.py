"""The Tasks `lf_*`: five sets of extreme classification with label texts, on which NGAME is published.

Percent, as published for NGAME (WSDM 2023; nDCG and PSnDCG from the Extreme Classification Repository). The three heads are
the encoder alone, the classifiers that are trained on it, and both fused:

                         fused                                                            encoder    classifiers
                         p@1   p@3   p@5   ndcg@5 psp@1 psp@3 psp@5 psndcg@5  hours       p@1  p@5   p@1  p@5
  lf_amazontitles_131k   46.01 30.28 21.47 48.67  38.81 44.40 49.43 45.31     12.59     42.61 20.69  44.69 21.21
  lf_amazon_131k         46.53 30.89 22.02 49.58  38.53 44.95 50.45 45.81     39.99     45.35 21.35  46.63 22.03
  lf_wikiseealso_320k    47.65 31.56 23.68 48.99  33.83 37.79 41.03 41.01     75.39     43.58 20.86  45.72 22.06
  lf_wikipedia_500k      84.01 64.69 49.97 75.97  41.25 52.57 57.04 56.11     54.88     77.92 40.95  84.78 50.92
  lf_amazontitles_1_3m   56.75 49.19 44.09 52.41  29.18 33.01 35.36 33.91     97.75     45.82 35.48  54.99 43.11

Hours are those of training on one V100. The encoder's numbers are from DEXA (KDD 2023), the classifiers' from Renee (MLSys
2023); another table of the first has 43.17 for the encoder's p@1 on lf_amazontitles_131k.

Splits are train and test. To hold training points out, read the same folder by its path: configs/data/extreme.gin.
"""

from collections.abc import Mapping
from typing import NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.benchmarks import benchmark_dir
from retrieval_jax.data.extreme import METRICS, extreme_task, is_titles, usual_propensity
from retrieval_jax.data.extreme_files import ExtremeFiles, extreme_files
from retrieval_jax.data.extreme_rows import TextRule

SOURCE = (
  "The Extreme Classification Repository (http://manikvarma.org/downloads/XC/XMLRepository.html), for research, under the "
  "terms of the texts' owners (Amazon, Wikipedia)"
)


class Spec(NamedTuple):
  """A set: its folder, the tokens that published results read of points and labels, and published numbers by split."""

  folder: str
  length: int
  counts: Mapping[str, int] = {}


SETS: Mapping[str, Spec] = {
  "amazontitles_131k": Spec("LF-AmazonTitles-131K", 32, {"test": 134_835, features.CORPUS: 131_073}),
  "amazon_131k": Spec("LF-Amazon-131K", 128),
  # The official code says 256 for Wikipedia and 128 for other full texts, and not which of the two this set is.
  "wikiseealso_320k": Spec("LF-WikiSeeAlso-320K", 256),
  "wikipedia_500k": Spec("LF-Wikipedia-500K", 256),
  "amazontitles_1_3m": Spec("LF-AmazonTitles-1.3M", 32),
}


def task(name: str, spec: Spec) -> features.TextTask:
  """Returns the Task of one set."""

  def files() -> ExtremeFiles:
    places = (f"extreme/{spec.folder}", f"xc/{spec.folder}", spec.folder)
    return extreme_files(
      benchmark_dir(*places, get="a browser, from http://manikvarma.org/downloads/XC/XMLRepository.html")
    )

  return extreme_task(
    f"lf_{name}",
    files,
    TextRule(is_titles(spec.folder)),
    splits=("train", "test"),
    info=features.TaskInfo(
      metrics=METRICS,
      query_length=spec.length,
      passage_length=spec.length,
      source=SOURCE,
      counts=spec.counts,
      propensity=usual_propensity(spec.folder),
    ),
  )


for _name, _spec in SETS.items():
  features.register(task(_name, _spec))
