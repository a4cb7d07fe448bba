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
from collections.abc import Iterator, Mapping

from retrieval_jax.data.download_program import DataSet, Remote, run
from retrieval_jax.tasks.multireqa import SETS  # pyright: ignore[reportMissingImports]  (tasks/ is installed there)

CANDIDATES = "https://github.com/google-research-datasets/MultiReQA/raw/master/data"
MRQA = "https://s3.us-east-2.amazonaws.com/mrqa/release/v2"
BIOASQ = "http://participants-area.bioasq.org/MRQA2019/"
# What MRQA calls the sets that MultiReQA calls otherwise.
PUBLISHED_AS = {
  "NaturalQuestions": "NaturalQuestionsShort",
  "TriviaQA": "TriviaQA-web",
  "DuoRC": "DuoRC.ParaphraseRC",
}


def sets() -> dict[str, DataSet]:
  """Returns the sets by the names of their tasks, without multireqa_ before them."""
  return {name: DataSet(tuple(_files(spec.folder, spec.md5))) for name, spec in SETS.items()}


def _files(folder: str, md5: Mapping[str, str]) -> Iterator[Remote]:
  for split, expected in md5.items():
    half = "train" if split == "train" else "dev"  # MultiReQA's test is MRQA's dev of other domains
    texts = f"{MRQA}/{half}/{PUBLISHED_AS.get(folder, folder)}.jsonl.gz"
    candidates = f"{split}/{folder}/candidates.json.gz"
    yield Remote(BIOASQ if folder == "BioASQ" else texts, f"mrqa/{half}/{folder}.jsonl.gz", md5=expected)
    yield Remote(f"{CANDIDATES}/{candidates}", f"multireqa/{candidates}")


if __name__ == "__main__":
  sys.exit(run(sets(), doc=__doc__ or ""))
