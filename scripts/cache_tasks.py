"""Caches the examples of Tasks with Apache Beam, on this machine or, by Beam's own arguments, on many (Dataflow, Flink, Spark).

A cache is worth its disk where making the examples is slow: data sets that TFDS decodes, preprocessors of your own, files that
many runs read from a network. configs/data/cached_task.gin reads it, on machines without Beam; tokens are made as always.
What Beam is told follows a "--"; every worker needs this package, the module of --module and the Task's files.

Needs the extra `beam` in an environment of its own: Beam does not take the newest protobuf, which constraints.txt has.

  python -m venv .venv-beam && .venv-beam/bin/pip install -e '.[beam]'
  .venv-beam/bin/python scripts/cache_tasks.py --task=beir_scifact --output_dir=/data/cached
  .venv-beam/bin/python scripts/cache_tasks.py --task=my_pairs --module=my_tasks --output_dir=gs://bucket/cached -- \\
    --runner=DataflowRunner --project=my-project --region=us-central1 --temp_location=gs://bucket/tmp \\
    --sdk_container_image=my-image
  python -m retrieval_jax.train --gin_file=data/cached_task.gin --gin.MIXTURE_OR_TASK_NAME=beir_scifact --gin.DATA_PATH=/data/cached ...

Exit status: 0, or 2 after a message.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from retrieval_jax.data.task_cache import CacheOptions, cache_task
from retrieval_jax.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line, caches the Tasks it names and returns the exit status."""
  logging.basicConfig(level=logging.WARNING, format="%(message)s")
  given = list(sys.argv[1:] if argv is None else argv)
  cut = given.index("--") if "--" in given else len(given)
  flags = _parser().parse_args(given[:cut])
  options = CacheOptions(flags.splits, flags.num_shards, flags.overwrite)
  try:
    for name in flags.task:
      counts = cache_task(
        name, flags.output_dir, module=flags.module, options=options, beam_arguments=given[cut + 1 :]
      )
      for split, count in counts.items():
        print(f"{name}, {split}: {count:,} examples are cached", flush=True)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("stopped; the next call makes the unfinished cache anew", file=sys.stderr)
    return 130
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument("--task", action="append", required=True, metavar="NAME", help="a Task; repeatable")
  parser.add_argument(
    "--output_dir", required=True, metavar="DIR", help="the folder of caches, one folder a Task"
  )
  parser.add_argument("--module", help="the Python module that registers the Tasks, if they are your own")
  parser.add_argument(
    "--splits", type=lambda text: text.split(","), help="such as train,test (default: all of the Task)"
  )
  parser.add_argument("--num_shards", type=int, default=16, help="files a split at least (default: 16)")
  parser.add_argument("--overwrite", action="store_true", help="make a cache anew that is there")
  return parser


if __name__ == "__main__":
  sys.exit(main())
