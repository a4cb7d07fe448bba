"""Downloads BEIR's data sets: a folder each with corpus.jsonl, queries.jsonl and qrels/.

Each zip file is checked against the sha256 that TensorFlow Datasets publishes for it (BEIR's README has the md5 of the
same files). A download that broke off is gone on with.

  python scripts/download_beir.py --list
  python scripts/download_beir.py --names scifact nfcorpus
  python -m retrieval_jax.eval --gin_file=evaluators/tasks.gin "--gin.EVAL_TASKS=('beir_scifact',)" ...

The licences are those of the owners of each set: https://github.com/beir-cellar/beir.
"""

import sys

from retrieval_jax.data.download_program import DataSet, Remote, run

BASE = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"
HOW = "https://github.com/beir-cellar/beir/tree/main/examples/dataset says how to make the folder beir/{}."
# name -> (sha256, bytes) of the zip file.
ZIPS = {
  "trec-covid": ("120f42a7864d2214234537733c0d2c6684e42fdfafff2c5eacf98afca6656aa0", 73876720),
  "nfcorpus": ("efe5be03f8c5b86a5870102d0599d227c8c6e2484328e68c6522560385671b0b", 2448432),
  "nq": ("2553bf7bfbab47b1436ca00a34bce57320e18e611fd00999a2a3a1b4714be752", 498307926),
  "hotpotqa": ("c62459dbc91d31329584507b1fa564b3b1abcee58800967113054ee0f5a15c62", 654025350),
  "fiqa": ("32c7df99ed21252fdfb2cf3f5673502a8d245ee0c44c4a133570d92ce2b3ad02", 17948027),
  "arguana": ("cfdf79adce27a401b3cd3ea267903134dbfab2c6afeb95d7fe5724a00bf7557b", 3773617),
  "webis-touche2020": ("1a706ed9c03ecc75cf012495bd8e37b761f7b0350a939910d0f54862e26fc601", 227132363),
  "cqadupstack": ("6072f7d345496387d24194c8af35c5fb6c2f0e5f9130c5b4a78b98bbfac88558", 5343728040),
  "quora": ("56aacd9dcc4d9c093b63f175afdda0e21cbc8442ecf6c717d09de7b358d77531", 15853968),
  "dbpedia-entity": ("e4c13080b5399a19e02b04c908c485f8997ac9e265a06ef5f9f28c3f1134c472", 639285131),
  "scidocs": ("96640201687767c9b1fcc5af7a80b90fb325b37fa25329c2586c25edcfa17ef1", 142471588),
  "fever": ("58b3faee0c152158b27970380f778ea56e4e34482034404226c10e11eadc7b72", 1236988269),
  "climate-fever": ("9d6cf03121238bba187f9d4b5bdfdc42b2b171f19b6d86a557f95c51687691f3", 1228666652),
  "scifact": ("536e14446a0ba56ed1398ab1055f39fe852686ecad24a6306c80c490fa8e0165", 2816079),
  "msmarco": ("f46aed8343564261c27228b7cf22dde5c9a70143fe34dc3c589bd5322308712a", 1082258632),
}
NOTES = {
  "cqadupstack": "12 forums",
  "msmarco": "its split test is TREC DL 2019 (43 queries), dev is dev small: the task msmarco_passage needs another download",
}
WITHHELD = {
  "bioasq": "MEDLINE abstracts go to those who register at http://bioasq.org.",
  "signal1m": "it consists of tweets, whose texts must be fetched by their numbers: "
  "https://research.signal-ai.com/datasets/signal1m-tweetir.html.",
  "trec-news": "the Washington Post's articles take an agreement with NIST: https://trec.nist.gov/data/news2019.html.",
  "robust04": "TREC's disks 4 and 5 take an agreement with NIST: https://trec.nist.gov/data/robust/04.guidelines.html.",
}


def sets() -> dict[str, DataSet]:
  """Returns the sets by BEIR's names."""
  public = {
    name: DataSet(
      (Remote(f"{BASE}/{name}.zip", f"beir/{name}", sha256=sha256, size=size, unpacks=True),),
      note=NOTES.get(name, ""),
    )
    for name, (sha256, size) in ZIPS.items()
  }
  withheld = {name: DataSet(withheld=f"{why} {HOW.format(name)}") for name, why in WITHHELD.items()}
  return public | withheld


if __name__ == "__main__":
  sys.exit(run(sets(), doc=__doc__ or ""))
