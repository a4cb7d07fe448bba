"""The fusion program: fits one score of both heads on held-out points. `python -m retrieval_jax.fuse --gin_file=...`."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax

from retrieval_jax.classifier_searcher import ClassifierSearcher
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.task_source import Source
from retrieval_jax.encoder_points import warn_if_encoder_saw
from retrieval_jax.errors import UserError
from retrieval_jax.fusion_file import kind_of, save_fusion
from retrieval_jax.fusion_fit import FusionFit, Gain, fit_fusion
from retrieval_jax.fusion_model import Fit
from retrieval_jax.fusion_options import DEFAULTS, FusionOptions
from retrieval_jax.fusion_split import check_training_points, training_points, warn_if_seen
from retrieval_jax.reporting import table
from retrieval_jax.searchers import Searcher

FEW_POINTS: Final = 100  # fewer are remarked on


def fuse(
  searcher: Searcher,
  data: RetrievalData,
  *,
  fit: Fit,
  options: FusionOptions = DEFAULTS,
  training: Source | None = None,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> FusionFit:
  """Fits a fusion of MODEL_DIR's checkpoint and classifiers on the data's split; prints whether it helps there.

  Writes MODEL_DIR/classifiers/step_<n>/fusion.npz, which searchers/heads.gin and searchers/fused_heads.gin read, and
  fusion.json with the numbers, the options and the data's fingerprint; those of an earlier fit are replaced. The fused
  numbers are cross-validated: each half of the points is measured with a model of the other half. on_start is ignored:
  the JSON is the record.

  training: the points that encoder and classifiers were trained on, to warn if they are others than those trained on then.

  Raises: UserError for a searcher without classifiers, points of the training where a fusion of other points is there, and
  for what `fit_fusion` refuses; then nothing is written.
  """
  del on_start
  if not isinstance(searcher, ClassifierSearcher):
    raise UserError(
      f"SEARCHER: {searcher.name} has no classifiers to fuse with its embeddings. Leave searchers/ out; this program "
      "searches with the checkpoint and the classifiers of MODEL_DIR."
    )
  options.check()
  check_training_points(searcher.classifiers, data.split)
  if training is not None:
    warn_if_encoder_saw(searcher.dense, training.name, training.split, lambda: training_points(training))
    if jax.process_index() == 0:
      warn_if_seen(searcher.classifiers, training)
  found = fit_fusion(searcher, data, fit, options)
  if jax.process_index() == 0:
    path = save_fusion(searcher.classifiers, found.fitted, _record(searcher, data, options, found))
    _print(searcher, data, found, path)
  return found


def _record(
  searcher: ClassifierSearcher, data: RetrievalData, options: FusionOptions, found: FusionFit
) -> Mapping[str, Any]:
  """Returns all that one must know to fit the same again, and what was found."""
  return {
    "model": kind_of(found.fitted.model),
    **found.fitted.model.describe(),
    "metrics": found.metrics,
    "gains": {
      metric: {"over": gain.over, "difference": gain.difference, "confidence_95": gain.interval}
      for metric, gain in found.gains.items()
    },
    "points": found.points,
    "candidates": found.candidates,
    "labels": found.labels,
    "labels_found": found.found,
    "propensity": data.info.propensity,
    "checkpoint": searcher.checkpoint,
    "step": searcher.step,
    "index": searcher.dense.name,
    "options": options._asdict(),
    "task": data.name,
    "split": data.split,
    "task_fingerprint": data.fingerprint,
    "task_files": data.files,
  }


def _print(searcher: ClassifierSearcher, data: RetrievalData, found: FusionFit, path: pathlib.Path) -> None:
  print(
    f"{searcher.checkpoint}\n"
    f"{data.name}/{data.split}: {found.points:,} points, {found.candidates:,} candidates; "
    f"{found.found:,} of {found.labels:,} labels among them ({found.found / found.labels:.1%})\n"
    f"{table(found.metrics)}\n"
    "fused: each half of the points by a fusion of the other half"
  )
  for metric, gain in found.gains.items():
    print(_verdict(metric, gain))
  if found.points < FEW_POINTS:
    print(
      f"remark: {found.points} points are few: another draw of them may give another fusion and another verdict. Hold more "
      "points out, some thousands where there are so many."
    )
  print(
    f"wrote {path}; measure all heads: python -m retrieval_jax.eval --gin_file=searchers/heads.gin "
    f"--gin.MODEL_DIR={path.parents[2]} and the data flags of this run",
    flush=True,
  )


def _verdict(metric: str, gain: Gain) -> str:
  """Returns what the fused head gains by a metric, in words. Example: "p@1: +0.8 (95%: +0.3 .. +1.3) against ...: it helps"."""
  low, high = gain.interval
  if low > 0:
    said = "the fusion helps"
  elif high < 0:
    said = f"the fusion harms; prefer {gain.over}"
  else:
    said = "no difference that can be told from chance"
  numbers = f"{100 * gain.difference:+.1f} (95%: {100 * low:+.1f} .. {100 * high:+.1f})"
  return f"{metric}: {numbers} against {gain.over}: {said}"


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("fuse")
