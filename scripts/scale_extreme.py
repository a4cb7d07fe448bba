"""What a training on many points and labels would take: memory, disk, network and time, term by term, on paper.

Nothing is run. Constants marked "measured" are CPU seconds and bytes of this code on two CPU cores; docs/scale_extreme.md
says by which command. Chips are as their vendor has them, hosts are an assumption. Change any number by its flag.

  python scripts/scale_extreme.py
  python scripts/scale_extreme.py --points 2_248_619 --labels 1_305_265 --labels_a_point 22.2 --batch 1600 --cluster_size 8 \
    --epochs 400 --chips 8 --hosts 1 --ram_gb 384
"""

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Measured, see docs/scale_extreme.md.
READ_PAIR_S, READ_PAIR_BYTES, READ_LABEL_BYTES = 11.6e-6, 100, 48  # data/pair_table.py
TOKENISE_S, TOKENISE_BYTES = 35e-6, 69  # a text; data/token_store.py
BATCH_S, UNION_S = 0.8e-6, 6.7e-6  # a point; dataset.make_batch, LabelUnions.batch
BANK_S, BANK_LOOK_S = 4.6e-9, 1.8e-9  # a component: EmbeddingBank.write, .missing
LEVEL_S, CLUSTER_S = 3e-6, 0.05e-6  # a row and level of the tree, a component; batching/clustering.py
CLUSTER_BYTES = 36  # a row, beside its components
ORDER_S = 0.13e-6  # a row: the sort of a refresh
# Of the code: files kept, and what it holds at once.
KEPT = 3  # two checkpoints, and the one being written
ORDERS = 4  # permutations that batching/permutation.py keeps
BRANCHES, LEAF = 64, 32  # of the tree in batching/clustering_tree.py
VOCABULARY, POSITIONS, HEADS = 30_522, 512, 12

GB = 1e9
CHIP, HOST, FIRST, DISK, TIME = "a chip", "every host", "host 0", "disk", "time"


class Setting(NamedTuple):
  """Sizes of data, model, training and machine; a float is in the unit that its name ends with."""

  points: int = 240_000_000
  labels: int = 85_000_000
  labels_a_point: float = 3.0
  text_bytes: int = 60
  tokens: int = 32
  layers: int = 6
  width: int = 768
  dim: int = 768
  batch: int = 25_600
  cluster_size: int = 16
  refresh_epochs: int = 5
  epochs: int = 40
  classifier_batch: int = 2048
  neighbours: int = 32
  searched: int = 1_000_000
  chips: int = 256
  hosts: int = 64
  peak_tflops: float = 197.0
  utilisation: float = 0.4
  hbm_gb: float = 16.0
  ici_gb_s: float = 100.0
  ram_gb: float = 192.0
  disk_gb: float = 2000.0
  disk_gb_s: float = 1.0

  @property
  def pairs(self) -> float:
    return self.points * self.labels_a_point

  @property
  def params(self) -> int:
    """Of one tower for both sides, without biases and norms."""
    return 12 * self.layers * self.width**2 + (VOCABULARY + POSITIONS) * self.width

  @property
  def text_flops(self) -> int:
    """Of one text forwards: 2 for each weight of a layer and token, and the two products of attention."""
    return self.tokens * self.layers * (24 * self.width**2 + 4 * self.tokens * self.width)

  @property
  def flops_a_second(self) -> float:
    """Of all chips, as far as they are used."""
    return self.chips * self.peak_tflops * 1e12 * self.utilisation

  @property
  def host_flops(self) -> float:
    """Of one host's chips, a second."""
    return self.flops_a_second / self.hosts


class Term(NamedTuple):
  """amount: bytes, or seconds where place is TIME. counts: whether it is part of the sum of its part and place."""

  part: str
  place: str
  what: str
  formula: str
  amount: float
  counts: bool = True


def _terms(
  part: str, *counted: tuple[str, str, str, float], beside: Sequence[tuple[str, str, str, float]] = ()
) -> list[Term]:
  """Returns the terms of a part: those that add up, and those beside them."""
  return [Term(part, *row) for row in counted] + [Term(part, *row, counts=False) for row in beside]


def prepare_terms(s: Setting) -> list[Term]:
  """Returns the terms of reading and tokenising once."""
  rows = s.points + s.labels
  reading = READ_PAIR_BYTES * s.pairs + READ_LABEL_BYTES * s.labels
  return _terms(
    "prepare",
    (DISK, "texts, ids, index of ids", "(N + L) (57 + text)", rows * (57 + s.text_bytes)),
    (DISK, "tokens, lengths, identities", "(N + L) (2 l + 8)", rows * (2 * s.tokens + 8)),
    (DISK, "who has which label", "12 N + 8 P", relevance_bytes(s)),
    (FIRST, "reading pairs", "100 P + 48 L", reading),
    (TIME, "reading pairs, one process", "11.6 us P", READ_PAIR_S * s.pairs),
    (TIME, "tokenising, CPU seconds", "35 us (N + L)", TOKENISE_S * rows),
    beside=[(FIRST, "tokenising, later", "69 N", TOKENISE_BYTES * s.points)],
  )


def relevance_bytes(s: Setting) -> float:
  """Returns the bytes of a Relevance: 8 + 4 a point, 4 + 4 a pair."""
  return 12 * s.points + 8 * s.pairs


def step_seconds(s: Setting) -> dict[str, float]:
  """Returns the seconds of a step of M1 by cause; chips and hosts work at the same time."""
  return {
    "encoders": 6 * s.batch * s.text_flops / s.flops_a_second,
    "network of chips": (8 * s.params + 16 * s.batch * s.dim) / (s.ici_gb_s * GB) if s.chips > 1 else 0.0,
    "batch, on every host": BATCH_S * s.batch,
    "bank, on host 0": BANK_S * s.batch * s.dim,
  }


def levels(s: Setting) -> int:
  """Returns the levels of the tree that a clustering makes.

  Example: 100,000 rows in clusters of 16 have 2, 240 million 4.
  """
  count, leaf = 0, max(LEAF, s.cluster_size)
  while s.points / BRANCHES**count > 2 * leaf:
    count += 1
  return count


def epoch_seconds(s: Setting) -> dict[str, float]:
  """Returns the seconds of an epoch of M1 if the chips alone, or hosts too, decide; and those of one refresh."""
  step = step_seconds(s)
  chips = step["encoders"] + step["network of chips"]
  hosts = step["batch, on every host"] + step["bank, on host 0"]
  steps = max(1, s.points // s.batch)
  row = LEVEL_S * levels(s) + (CLUSTER_S + BANK_LOOK_S) * s.dim + ORDER_S
  return {"chips": steps * chips, "epoch": steps * max(chips, hosts), "refresh": row * s.points}


def train_terms(s: Setting) -> list[Term]:
  """Returns the terms of M1 on NGAME's batches."""
  tokens = 2 * s.batch / s.chips * s.tokens
  clusters, bank = s.points / s.cluster_size, 2 * s.points * s.dim
  clustering = s.points * (s.dim + CLUSTER_BYTES) + 2 * clusters * s.dim
  step, epoch = step_seconds(s), epoch_seconds(s)
  per_epoch = epoch["epoch"] + epoch["refresh"] / s.refresh_epochs
  activations = tokens * s.layers * (34 * s.width + 5 * HEADS * s.tokens)
  return _terms(
    "train (M1, NGAME)",
    (CHIP, "parameters, gradient, Adam", "16 params", 16 * s.params),
    (CHIP, "activations, bfloat16", "2 q l layers (34 w + 5 heads l) / n", activations),
    (CHIP, "scores and masks", "16 q^2 / n", 16 * s.batch**2 / s.chips),
    (CHIP, "gathered embeddings", "12 q d", 12 * s.batch * s.dim),
    (HOST, "who has which label", "12 N + 8 P", relevance_bytes(s)),
    (HOST, "order of random epochs", "4 N + 4 x 8 N", (4 + 8 * ORDERS) * s.points),
    (HOST, "clusters in force", "4 N + 8 N / C", 4 * s.points + 8 * clusters),
    (FIRST, "clustering", "N (d + 36) + 2 N d / C", clustering),
    (DISK, "bank and its copies", "(1 + 3) 2 N d", (1 + KEPT) * bank),
    *[(TIME, f"a step: {cause}", "", seconds) for cause, seconds in step.items()],
    (TIME, "an epoch, if chips decide", "N / q steps", epoch["chips"]),
    (TIME, "an epoch", "N / q max(chips, host 0)", epoch["epoch"]),
    (TIME, "a refresh, one thread", "N (3 us levels + 52 ns d)", epoch["refresh"]),
    (TIME, "a copy of the bank", "2 N d / disk", bank / (s.disk_gb_s * GB)),
    (TIME, "all epochs", "epochs (epoch + refresh / tau)", s.epochs * per_epoch),
    beside=[
      (HOST, "tokens, system's cache", "(N + L) 2 l", (s.points + s.labels) * 2 * s.tokens),
      (FIRST, "bank, system's cache", "2 N d", bank),
      (
        CHIP,
        "clustering on the mesh",
        "N d / n + 5 N d / C",
        s.points * s.dim / s.chips + 5 * clusters * s.dim,
      ),
    ],
  )


def ance_terms(s: Setting) -> list[Term]:
  """Returns the terms of one refresh of mined negatives, 200 a point, beside those of M1."""
  rows, products = s.points + s.labels, 2 * s.points * s.labels * s.dim
  return _terms(
    "ANCE-like refresh",
    (FIRST, "embeddings, float32", "4 (N + L) d", 4 * rows * s.dim),
    (FIRST, "negatives", "800 N", 800 * s.points),
    (
      TIME,
      "encoding, one host's chips",
      "(N + L) flops / (n peak use / hosts)",
      rows * s.text_flops / s.host_flops,
    ),
    (TIME, "exact search, one host's chips", "2 N L d / (n peak use / hosts)", products / s.host_flops),
  )


def classifier_terms(s: Setting) -> list[Term]:
  """Returns the terms of M2 with Adam."""
  weights, rows, q = 4 * s.labels * s.dim, s.points + s.labels, s.classifier_batch
  union = min(q * s.labels_a_point, s.labels)  # if no two points share a label
  moved = 16 * union * s.dim
  network = s.points / q * moved / (s.ici_gb_s * GB) if s.chips > 1 else 0.0
  return _terms(
    "classifiers (M2)",
    (CHIP, "W and two moments", "12 L d / n", 3 * weights / s.chips),
    (CHIP, "union of a batch and its slots", "32 u d", 2 * moved),
    (CHIP, "scores and masks", "16 q u / n", 16 * q * union / s.chips),
    (HOST, "who has which label", "12 N + 8 P", relevance_bytes(s)),
    (HOST, "order of random epochs", "4 N + 4 x 8 N", (4 + 8 * ORDERS) * s.points),
    (DISK, "checkpoints", "3 x 12 L d", KEPT * 3 * weights),
    (DISK, "result", "4 L d", weights),
    (DISK, "embeddings, float32", "4 (N + L) d", 4 * rows * s.dim),
    (
      TIME,
      "encoding, one host's chips",
      "(N + L) flops / (n peak use / hosts)",
      rows * s.text_flops / s.host_flops,
    ),
    (TIME, "an epoch: network of chips", "N / q 16 u d / ici", network),
    (TIME, "an epoch: batches, every host", "6.7 us N", UNION_S * s.points),
    (TIME, "an epoch: reading points", "4 N d / disk", 4 * s.points * s.dim / (s.disk_gb_s * GB)),
  )


def search_terms(s: Setting) -> list[Term]:
  """Returns the terms of searching the labels for some queries."""
  corpus, products = 4 * s.labels * s.dim, 2 * s.searched * s.labels * s.dim
  return _terms(
    "search",
    (CHIP, "two chunks of labels, scores", "50,000 (8 d + 1,024)", 50_000 * (8 * s.dim + 1024)),
    (FIRST, "HNSW", "(4 d + 8 M) L", (4 * s.dim + 8 * s.neighbours) * s.labels),
    (FIRST, "results, 100 a query", "800 queries", 800 * s.searched),
    (DISK, "labels, float32", "4 L d", corpus),
    (TIME, "exact: reading labels", "4 L d / disk", corpus / (s.disk_gb_s * GB)),
    (TIME, "exact: one host's chips", "2 queries L d / (n peak use / hosts)", products / s.host_flops),
  )


PARTS: Sequence[Callable[[Setting], list[Term]]] = (
  prepare_terms,
  train_terms,
  ance_terms,
  classifier_terms,
  search_terms,
)


def verdicts(terms: Sequence[Term], s: Setting) -> list[tuple[str, str, float, float]]:
  """Returns (part, place, bytes in all, bytes that there are) of each part and place with bytes.

  Host 0 holds what every host holds, too.
  """
  limits = {CHIP: s.hbm_gb * GB, HOST: s.ram_gb * GB, FIRST: s.ram_gb * GB, DISK: s.disk_gb * GB}
  found = []
  for part in dict.fromkeys(one.part for one in terms):
    sums = dict.fromkeys(limits, 0.0)
    for one in terms:
      if one.part == part and one.place in sums and one.counts:
        sums[one.place] += one.amount
    if sums[FIRST]:
      sums[FIRST] += sums[HOST]
    found += [(part, place, amount, limits[place]) for place, amount in sums.items() if amount]
  return found


def shown(term: Term) -> str:
  """Returns an amount in words.

  Example: `shown(Term("", DISK, "", "", 2e9))` is "2.00 GB".
  """
  units = (
    ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))
    if term.place == TIME
    else ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"))
  )
  size, unit = next((pair for pair in units if term.amount >= pair[0]), units[-1])
  return f"{term.amount / size:.3g} {unit}"


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  for name, default in Setting()._asdict().items():
    parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default {default:,}")
  setting = Setting(**vars(parser.parse_args()))
  wrong = [name for name, value in setting._asdict().items() if not value > 0]
  if wrong:
    parser.error(f"--{wrong[0]} is {getattr(setting, wrong[0])}; expected a number above 0")
  terms = [term for part in PARTS for term in part(setting)]
  print(
    f"N {setting.points:,} points, L {setting.labels:,} labels, P {setting.pairs:,.0f} pairs, d {setting.dim}, "
    f"l {setting.tokens}, {setting.params / 1e6:.0f} M parameters; q {setting.batch:,}, n {setting.chips} chips, "
    f"{setting.hosts} hosts"
  )
  last = ""
  for term in terms:
    if term.part != last:
      print(f"\n{term.part}")
    last = term.part
    print(f"  {term.place:<11}{term.what:<32}{term.formula:<38}{shown(term):>10}")
  print("\nfits?")
  for part, place, amount, limit in verdicts(terms, setting):
    print(
      f"  {part:<20}{place:<11}{amount / GB:>9,.1f} GB of {limit / GB:>7,.0f}  {'fits' if amount <= limit else 'DOES NOT FIT'}"
    )
  epoch = epoch_seconds(setting)
  share = epoch["refresh"] / setting.refresh_epochs / epoch["epoch"]
  print(f"\nrefresh, spread over its epochs, of an epoch: {share:.0%}")


if __name__ == "__main__":
  main()
