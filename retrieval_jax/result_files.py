"""The names of the files that an evaluation writes into MODEL_DIR/eval/<task>/step_<n>."""

from typing import Final

METRICS_FILE: Final = "metrics.json"
RUN_FILE: Final = "run.trec"
PER_QUERY_FILE: Final = "per_query.tsv"
WORST_FILE: Final = "worst.jsonl"
GEOMETRY_FILE: Final = "geometry.npz"
