"""Downloads MultiReQA: sentences that answer questions, over the texts of the MRQA shared task.

MultiReQA publishes where the sentences begin and end, MRQA the texts and the questions: both are needed, and lie in the
folders multireqa and mrqa. MRQA's files are checked against the md5 sums in its README; MultiReQA publishes none, so its
files are read to their end, which checks the sum that each gzip file carries. A download that broke off is gone on with.

  python scripts/download_multireqa.py --list
  python scripts/download_multireqa.py --names squad nq
  python -m retrieval_jax.eval --gin_file=evaluators/tasks.gin "--gin.EVAL_TASKS=('multireqa_squad:dev',)" ...

Sources: https://github.com/google-research-datasets/MultiReQA, https://github.com/mrqa/MRQA-Shared-Task-2019. The
licences of the texts are those of the sets that they come from.
"""

import sys
from typing import NamedTuple

from retrieval_jax.data.download_program import DataSet, Remote, run

CANDIDATES = "https://github.com/google-research-datasets/MultiReQA/raw/master/data"
MRQA = "https://s3.us-east-2.amazonaws.com/mrqa/release/v2"


class Half(NamedTuple):
  """A split: where it lies in MultiReQA and in MRQA, the name of MRQA's file there, and that file's md5."""

  candidates: str
  texts: str
  published_as: str
  md5: str


# MultiReQA's name of each set, and its splits. MRQA's dev files of other domains are MultiReQA's test.
TABLE: dict[str, tuple[str, tuple[Half, ...]]] = {
  "nq": (
    "NaturalQuestions",
    (
      Half("train", "train", "NaturalQuestionsShort", "e27d27bf7c49eb5ead43cef3f41de6be"),
      Half("dev", "dev", "NaturalQuestionsShort", "c0347eebbca02d10d1b07b9a64efe61d"),
    ),
  ),
  "squad": (
    "SQuAD",
    (
      Half("train", "train", "SQuAD", "efd6a551d2697c20a694e933210489f8"),
      Half("dev", "dev", "SQuAD", "05f3f16c5c31ba8e46ff5fa80647ac46"),
    ),
  ),
  "triviaqa": (
    "TriviaQA",
    (
      Half("train", "train", "TriviaQA-web", "e18f586152612a9358c22f5536bfd32a"),
      Half("dev", "dev", "TriviaQA-web", "5c9fdc633dfe196f1b428c81205fd82f"),
    ),
  ),
  "searchqa": (
    "SearchQA",
    (
      Half("train", "train", "SearchQA", "612245315e6e7c4d8446e5fcc3dc1086"),
      Half("dev", "dev", "SearchQA", "9217ad3f6925c384702f2a4e6d520c38"),
    ),
  ),
  "hotpotqa": (
    "HotpotQA",
    (
      Half("train", "train", "HotpotQA", "d212c7b3fc949bd0dc47d124e8c34907"),
      Half("dev", "dev", "HotpotQA", "125a96846c830381a8acff110ff6bd84"),
    ),
  ),
  "bioasq": ("BioASQ", (Half("test", "dev", "", "70752a39beb826a022ab21353cb66e54"),)),
  "relation_extraction": (
    "RelationExtraction",
    (Half("test", "dev", "RelationExtraction", "266be75954fcb31b9dbfa9be7a61f088"),),
  ),
  "textbookqa": ("TextbookQA", (Half("test", "dev", "TextbookQA", "8b52d21381d841f8985839ec41a6c7f7"),)),
  "duorc": ("DuoRC", (Half("test", "dev", "DuoRC.ParaphraseRC", "b325c0ad2fa10e699136561ee70c5ddd"),)),
}
BIOASQ = "http://participants-area.bioasq.org/MRQA2019/"


def sets() -> dict[str, DataSet]:
  """Returns the sets by the names of their tasks, without multireqa_ before them."""
  return {name: DataSet(tuple(_files(folder, halves))) for name, (folder, halves) in TABLE.items()}


def _files(folder: str, halves: tuple[Half, ...]) -> list[Remote]:
  found = []
  for half in halves:
    texts = f"{MRQA}/{half.texts}/{half.published_as}.jsonl.gz" if half.published_as else BIOASQ
    candidates = f"{half.candidates}/{folder}/candidates.json.gz"
    found.append(Remote(texts, f"mrqa/{half.texts}/{folder}.jsonl.gz", md5=half.md5))
    found.append(Remote(f"{CANDIDATES}/{candidates}", f"multireqa/{candidates}"))
  return found


if __name__ == "__main__":
  sys.exit(run(sets(), doc=__doc__ or ""))
