"""The Tasks `multireqa_<name>`: find the sentence that answers a question, among all sentences of the split's contexts.

Five sets have train and dev, as the release calls what papers evaluate on; four have test alone.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.benchmarks import benchmark_dir
from retrieval_jax.data.file_task import files_fingerprint
from retrieval_jax.data.lines import found_file
from retrieval_jax.data.multireqa import read_multireqa_corpus, read_multireqa_pairs
from retrieval_jax.errors import UserError

METRICS = ("p@1", "mrr", "mrr@10", "recall@10", "recall@100")
SOURCE = (
  "MultiReQA (https://github.com/google-research-datasets/MultiReQA) over the texts of the MRQA shared task "
  "(https://github.com/mrqa/MRQA-Shared-Task-2019), under the licences of the sets they come from"
)


class Spec(NamedTuple):
  """A set: its folder in MultiReQA, and the published numbers of candidate sentences and md5 of MRQA's files, by split."""

  folder: str
  candidates: Mapping[str, int]
  md5: Mapping[str, str]


SETS: Mapping[str, Spec] = {
  "nq": Spec(
    "NaturalQuestions",
    {"dev": 22_118},
    {"train": "e27d27bf7c49eb5ead43cef3f41de6be", "dev": "c0347eebbca02d10d1b07b9a64efe61d"},
  ),
  "squad": Spec(
    "SQuAD",
    {"train": 95_659, "dev": 10_642},
    {"train": "efd6a551d2697c20a694e933210489f8", "dev": "05f3f16c5c31ba8e46ff5fa80647ac46"},
  ),
  "triviaqa": Spec(
    "TriviaQA",
    {"train": 1_893_674, "dev": 238_339},
    {"train": "e18f586152612a9358c22f5536bfd32a", "dev": "5c9fdc633dfe196f1b428c81205fd82f"},
  ),
  "searchqa": Spec(
    "SearchQA",
    {"train": 3_163_801, "dev": 454_836},
    {"train": "612245315e6e7c4d8446e5fcc3dc1086", "dev": "9217ad3f6925c384702f2a4e6d520c38"},
  ),
  "hotpotqa": Spec(
    "HotpotQA",
    {"train": 508_879, "dev": 52_191},
    {"train": "d212c7b3fc949bd0dc47d124e8c34907", "dev": "125a96846c830381a8acff110ff6bd84"},
  ),
  "bioasq": Spec("BioASQ", {"test": 14_158}, {"test": "70752a39beb826a022ab21353cb66e54"}),
  "relation_extraction": Spec(
    "RelationExtraction", {"test": 3_301}, {"test": "266be75954fcb31b9dbfa9be7a61f088"}
  ),
  # MultiReQA's README says 3,701; its file has 71,147.
  "textbookqa": Spec("TextbookQA", {"test": 71_147}, {"test": "8b52d21381d841f8985839ec41a6c7f7"}),
  "duorc": Spec("DuoRC", {"test": 5_525}, {"test": "b325c0ad2fa10e699136561ee70c5ddd"}),
}


def task(name: str, spec: Spec) -> features.TextTask:
  """Returns the Task of one set."""
  get = f"python scripts/download_multireqa.py --names {name}"
  splits = tuple(spec.md5)

  def candidates(split: str) -> pathlib.Path:
    leaf = f"{split}/{spec.folder}"
    places = (f"multireqa/{leaf}", f"multireqa/data/{leaf}", f"MultiReQA/data/{leaf}")
    return found_file(benchmark_dir(*places, get=get), "candidates.json")

  def texts(split: str) -> pathlib.Path:
    half = "train" if split == "train" else "dev"  # what MultiReQA calls test is MRQA's dev of other domains
    return found_file(benchmark_dir(f"mrqa/{half}", f"MRQA/{half}", get=get), f"{spec.folder}.jsonl")

  def read(split: str) -> Iterator[features.Example]:
    pairs = split.removeprefix(f"{features.CORPUS}_")
    if features.is_corpus(split):
      return read_multireqa_corpus(candidates(pairs), [texts(pairs)])
    return read_multireqa_pairs(candidates(split), [texts(split)])

  def files_of(split: str) -> list[pathlib.Path]:
    return [candidates(split), texts(split)]

  def files() -> list[pathlib.Path]:
    """Returns the files of the splits that are there: dev does without train."""
    found: list[pathlib.Path] = []
    for split in splits:
      with contextlib.suppress(UserError):
        found += files_of(split)
    return found or files_of(splits[-1])

  return features.TextTask(
    name=f"multireqa_{name}",
    splits=(*splits, *(f"{features.CORPUS}_{split}" for split in splits)),
    read=read,
    fingerprint=lambda: files_fingerprint(files()),
    info=features.TaskInfo(
      metrics=METRICS,
      template="{text}",
      source=SOURCE,
      counts={f"{features.CORPUS}_{split}": count for split, count in spec.candidates.items()},
      checksums={
        f"{'train' if split == 'train' else 'dev'}/{spec.folder}.jsonl.gz": md5
        for split, md5 in spec.md5.items()
      },
    ),
    files=files,
    corpus_fingerprint=lambda split: files_fingerprint(files_of(split.removeprefix(f"{features.CORPUS}_"))),
  )


for _name, _spec in SETS.items():
  features.register(task(_name, _spec))
