"""Logical axis names of parameters and activations. No mesh here: partitioning.py maps these to mesh axes.

The names are T5X's, so that its users' axis rules keep their meaning.
"""

from typing import Final

BATCH: Final = "batch"
LENGTH: Final = "length"
VOCAB: Final = "vocab"
EMBED: Final = "embed"
MLP: Final = "mlp"
HEADS: Final = "heads"
KV: Final = "kv"
JOINED_KV: Final = "joined_kv"
AFFINITY: Final = "affinity"  # the projection's output
RELPOS_BUCKETS: Final = "relpos_buckets"
POSITION: Final = "abspos_buckets"
LAYERS: Final = "layers"

ALL: Final = (
  BATCH,
  LENGTH,
  VOCAB,
  EMBED,
  MLP,
  HEADS,
  KV,
  JOINED_KV,
  AFFINITY,
  RELPOS_BUCKETS,
  POSITION,
  LAYERS,
)
