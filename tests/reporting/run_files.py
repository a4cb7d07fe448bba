"""A MODEL_DIR as the programs leave it, made of our own writers and a few numbers, and a reader of pages."""

import html.parser
import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from retrieval_jax.decile_report import write_deciles
from retrieval_jax.embedding_sample import sample_of, write_sample
from retrieval_jax.metrics.deciles import Decile
from retrieval_jax.metrics.per_query import write_per_query
from retrieval_jax.worst_file import ShownPassage, WorstQuery, write_worst

CONFIG = """from __gin__ import dynamic_registration
from retrieval_jax.losses import in_batch

# Macros:
# ==============================================================================
BATCH_SIZE = 16
LEARNING_RATE = 0.0001
LOSS = @in_batch.samtone()
MODEL_DIR = '/tmp/run'
OWN_SETTING = 'mine'
SEED = 0
TEMPERATURE = 0.05

# Parameters for MODEL/bert.BertEncoder:
# ==============================================================================
MODEL/bert.BertEncoder.dtype = 'float32'
MODEL/bert.BertEncoder.num_layers = 2
MODEL/bert.BertEncoder.dropout_rate = %DROPOUT_RATE
"""
COMMAND = [
  "train",
  "--gin_file=models/bert_tiny.gin",
  "--gin_file=losses/samtone.gin",
  "--gin_file=own.gin",
  "--gin.BATCH_SIZE=16",
  "--gin.LEARNING_RATE=1e-4",
  "--gin.TEMPERATURE=0.05",
  "--gin.MODEL_DIR=/tmp/run",
]
EVIL = "<script>alert('x')</script> & \"quoted\" \ud800\x00"
VOID = {"meta", "link", "br", "use"}


def write_log(folder: pathlib.Path, records: Sequence[Mapping[str, object]], *, end: str = "") -> None:
  (folder / "train").mkdir(parents=True, exist_ok=True)
  lines = "".join(json.dumps(record) + "\n" for record in records)
  (folder / "train" / "log.jsonl").write_text(lines + end, encoding="utf-8")


def write_evaluation(
  folder: pathlib.Path, step: int, values: Sequence[float], *, task: str = "toy", kind: str = ""
) -> pathlib.Path:
  """Writes metrics.json and per_query.tsv of one metric, mrr, with an interval of a tenth to both sides."""
  own = folder / "eval" / task / f"{kind}step_{step}"
  own.mkdir(parents=True)
  mean = float(np.mean(values))
  record = {"mrr": mean, "alignment": 0.5, "queries": len(values), "corpus_size": 1234, "step": step}
  record["confidence_95"] = {"mrr": [mean - 0.1, mean + 0.1]}
  (own / "metrics.json").write_text(json.dumps(record), encoding="utf-8")
  write_per_query(own / "per_query.tsv", [f"q{i}" for i in range(len(values))], {"mrr": np.array(values)})
  return own


def write_geometry(own: pathlib.Path, *, pairs: int = 40, seed: int = 0) -> None:
  rng = np.random.default_rng(seed)
  queries = rng.normal(size=(pairs, 8)).astype(np.float32)
  passages = queries + 0.3 * rng.normal(size=(pairs, 8)).astype(np.float32)
  write_sample(own / "geometry.npz", sample_of((queries, passages), (queries, passages)))


def write_run(folder: pathlib.Path, *, shift: float = 0.0) -> pathlib.Path:
  """Writes a run that has every part, and texts that are not to be trusted."""
  folder.mkdir(parents=True)
  (folder / "config.gin").write_text(CONFIG, encoding="utf-8")
  versions = {
    "command": COMMAND,
    "python": "3.11.7",
    "packages": {"jax": "0.10.2", "tensorflow": None},
    "git": "abc",
  }
  (folder / "versions.json").write_text(json.dumps(versions), encoding="utf-8")
  (folder / "model-info.txt").write_text(
    "variable\nparameters: 1,234 numbers, 5 bytes a device\nmesh {} of 1 devices\n"
  )
  records: list[dict[str, object]] = [
    {
      "step": step,
      "time": 1e9 + 60 * step,
      "loss": 3.0 / step + shift,
      "learning_rate": 0.1 / step,
      "grad_norm": None,
    }
    | {"gramian/error_query": 1 / step, "gramian/error_passage": 0.5}
    for step in range(1, 11)
  ]
  write_log(folder, records)
  write_evaluation(folder, 5, [0.0, 0.5, 1.0, 0.5])
  own = write_evaluation(folder, 10, [0.5, 1.0, 1.0, 0.5 + shift])
  write_evaluation(folder, 0, [0.25, 0.25, 0.25, 0.25], kind="bm25_")
  write_geometry(own)
  deciles = [
    Decile(2, n, 9 - n, 8 - n, 3, 0.3, {"p@1": 0.1, "p@5": 0.05 * n, "recall@5": 0.5}) for n in range(3)
  ]
  write_deciles(own / "deciles.tsv", deciles)
  passage = ShownPassage(EVIL, EVIL, None, 1, 0.75)
  lost = ShownPassage(None, None, 2, None, None)
  write_worst(own / "worst.jsonl", [WorstQuery(EVIL, EVIL, "mrr", 0.125, 7, [passage], [lost])])
  return folder


class Page(html.parser.HTMLParser):
  """What stands in a page: its text, the ids of its elements, its links; fails at a tag that is not closed."""

  def __init__(self, text: str):
    super().__init__()
    self.open: list[str] = []
    self.ids: list[str] = []
    self.targets: list[str] = []
    self.tags: list[str] = []
    self.labels: list[str] = []
    self.text = ""
    self.feed(text)
    self.close()
    assert not self.open, f"not closed: {self.open}"

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self.tags.append(tag)
    if tag not in VOID:
      self.open.append(tag)
    given = dict(attrs)
    self.ids += [given["id"] or ""] if "id" in given else []
    self.targets += [given["href"] or ""] if "href" in given else []
    if tag == "svg":
      self.labels.append(given["aria-label"] or "")

  def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self.handle_starttag(tag, attrs)
    if tag not in VOID:
      self.open.pop()

  def handle_endtag(self, tag: str) -> None:
    if tag not in VOID:
      assert self.open.pop() == tag, f"</{tag}> closes another element"

  def handle_data(self, data: str) -> None:
    if "style" not in self.open:
      self.text += data


def check_page(text: str) -> Page:
  """Returns the parsed page; fails if it needs the network, runs a script, or has a link into nothing."""
  found = Page(text)
  assert not {"script", "img", "iframe", "object"} & set(found.tags)
  assert "http:" not in text
  assert "https:" not in text
  assert "url(" not in text.replace("url(#", "")
  assert len(found.ids) == len(set(found.ids))
  inner = [target[1:] for target in found.targets if target.startswith("#")]
  assert set(inner) <= set(found.ids)
  assert [target for target in found.targets if not target.startswith("#")] == ["data:,"]
  assert "\x00" not in text
  return found
