"""Downloads MS MARCO's passage ranking data, version 1, to the folder msmarco_passage.

`passage` is the collection with all queries and the judgements of train and dev small; dl19 and dl20 are the queries and
judgements of TREC's Deep Learning tracks over the same collection. The others are training triples, and the passages to
rank again. Files are checked against the md5 sums that the catalogue of ir_datasets has for them. A download that broke
off is gone on with.

  python scripts/download_msmarco.py
  python scripts/download_msmarco.py --names triples_ids
  python -m retrieval_jax.eval --gin_file=evaluators/tasks.gin "--gin.EVAL_TASKS=('msmarco_passage:dev_small',)" ...

The data are for non-commercial research: https://microsoft.github.io/msmarco/.
"""

import sys

from retrieval_jax.data.download_program import DataSet, Remote, run
from retrieval_jax.tasks.msmarco import INFO, NAME  # pyright: ignore[reportMissingImports]  (tasks/ is installed there)

BASE = "https://msmarco.z22.web.core.windows.net/msmarcoranking"
TREC = "https://trec.nist.gov/data/deep"
FOLDER, CHECKSUMS = NAME, INFO.checksums
# Of its interfaces this server offers an old one unless asked for another; ir_datasets asks so to be able to resume.
HEADERS = {"X-Ms-Version": "2019-12-12"}


def _file(name: str, size: int, *, md5: str = "", base: str = BASE) -> Remote:
  headers = HEADERS if base == BASE else {}
  return Remote(f"{base}/{name}", f"{FOLDER}/{name}", md5=md5 or CHECKSUMS[name], size=size, headers=headers)


def _archive(name: str, md5: str, size: int) -> Remote:
  return Remote(f"{BASE}/{name}", FOLDER, md5=md5, size=size, unpacks=True, headers=HEADERS)


def sets() -> dict[str, DataSet]:
  """Returns the sets by name."""
  return {
    "passage": DataSet(
      (
        _archive("collectionandqueries.tar.gz", "31644046b18952c1386cd4564ba2ae69", 1057717952),
        _file("qrels.dev.tsv", 1201626, md5="9157ccaeaa8227f91722ba5770787b16"),
      ),
      note="the collection, all queries, the judgements of train, dev and dev small; 3.4 GB on disk",
    ),
    "dl19": DataSet(
      (
        _file("msmarco-test2019-queries.tsv.gz", 4276),
        _file("2019qrels-pass.txt", 187092, base=TREC),
      ),
      note="TREC Deep Learning 2019: 43 judged queries",
    ),
    "dl20": DataSet(
      (
        _file("msmarco-test2020-queries.tsv.gz", 4131),
        _file("2020qrels-pass.txt", 218617, base=TREC),
      ),
      note="TREC Deep Learning 2020: 54 judged queries",
    ),
    "triples_ids": DataSet(
      (_file("qidpidtriples.train.full.2.tsv.gz", 1841693309, md5="219083e80a0a751c08b968c2f31a4e0b"),),
      note="397,768,673 training triples of ids",
    ),
    "triples_small": DataSet(
      (_archive("triples.train.small.tar.gz", "c13bf99ff23ca691105ad12eab837f84", 7930881353),),
      note="39,780,811 training triples of texts",
    ),
    "top1000_dev": DataSet(
      (_archive("top1000.dev.tar.gz", "8c140662bdf123a98fbfe3bb174c5831", 687414398),),
      note="1,000 passages of BM25 for each query of dev small",
    ),
  }


if __name__ == "__main__":
  sys.exit(run(sets(), doc=__doc__ or "", default=("passage", "dl19", "dl20")))
