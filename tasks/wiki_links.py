"""The Tasks `wiki_links` and `wiki_links_text`: the links between a Wikipedia's pages, as the Gramian paper learns them.

Given a page, find the pages that it links to; directed, so the two sides differ. `wiki_links` writes a page as JSON with its
id, title and categories, for feature-bag towers (configs/models/feature_bag_small.gin); `wiki_links_text` as its title and
text. The measure is map@10 of each page that links, over all pages; SAMPLE_CANDIDATES = 50000 is the paper's sample of them. As
published (Krichene et al. 2019, arXiv 1807.07187, tables 1 and 2; 90% of the links are train, 10% are held out):

            pages   links   map@10: sampling   SOGram, its best alpha
  simple      85K    4.6M             0.0319             0.0325 (0.01)
  fr         1.8M    142M             0.0886            0.1158 (0.001)
  en         5.3M    490M             0.1352            0.1801 (0.001)

The files are a folder as LinkGraph reads it: nodes.jsonl, edges.train.tsv, edges.dev.tsv and edges.test.tsv, for example of
the Wikispeedia articles (SNAP). Another folder, or other fields: configs/data/link_graph.gin.
"""

from collections.abc import Sequence

from retrieval_jax.data import features
from retrieval_jax.data.benchmarks import benchmark_dir
from retrieval_jax.data.link_graph import GraphFiles, graph_files, graph_task

SPLITS = ("train", "dev", "test")
PLACES = ("wiki_links", "graph_wikispeedia")
INFO = features.TaskInfo(
  metrics=("map@10", "mrr@10", "recall@10", "recall@100"),
  drop_identical=True,
  source="a Wikipedia's pages and links, CC BY-SA or GFDL; Wikispeedia's links: cite West, Pineau and Precup 2009",
)


def files() -> GraphFiles:
  """Returns the files, wherever they lie."""
  get = "a browser, from https://snap.stanford.edu/data/wikispeedia.html, and write nodes.jsonl and edges.<split>.tsv"
  return graph_files(benchmark_dir(*PLACES, get=get))


def task(name: str, fields: Sequence[str] | None) -> features.TextTask:
  """Returns one of the Tasks."""
  return graph_task(name, files, SPLITS, features=fields, info=INFO)


features.register(task("wiki_links", ("id", "title", "categories")))
features.register(task("wiki_links_text", None))
