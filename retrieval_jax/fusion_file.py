"""A fitted fusion on disk, beside the classifiers that it belongs to: fusion.npz to read, fusion.json for people."""

import hashlib
import json
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Float

from retrieval_jax.classifiers import LabelClassifiers
from retrieval_jax.errors import UserError
from retrieval_jax.fusion_model import FusionModel
from retrieval_jax.linear_fusion import LinearFusion
from retrieval_jax.paths import atomic_write
from retrieval_jax.tree_fusion import TreeFusion

ARRAYS, RECORD = "fusion.npz", "fusion.json"
KINDS: Final = {"linear": LinearFusion, "tree": TreeFusion}
_OWN: Final = (
  "kind",
  "classifiers",
  "log_inverse_propensity",
  "depth",
)  # the other arrays are the model's fields


class FittedFusion(NamedTuple):
  """A model with what it was fitted with.

  log_inverse_propensity: the feature that is the same for every query, log 1 / p_l of each corpus row, or zeros.
  depth: results of each head among whose union it was fitted; None where nobody noted it.
  """

  model: FusionModel
  log_inverse_propensity: Float[np.ndarray, "c"]
  depth: int | None = None


def kind_of(model: FusionModel) -> str:
  """Returns "linear" or "tree"."""
  return next(name for name, kind in KINDS.items() if isinstance(model, kind))


def save_fusion(
  classifiers: LabelClassifiers, fitted: FittedFusion, record: Mapping[str, Any]
) -> pathlib.Path:
  """Writes fusion.npz and fusion.json into the classifiers' folder, over those of an earlier fit; returns the former.

  record: what fusion.json says. An earlier one is removed first, so that none stands beside another fit's numbers.
  """
  folder = classifiers.folder
  (folder / RECORD).unlink(missing_ok=True)
  with atomic_write(folder / ARRAYS, "wb") as file:
    np.savez(
      file,
      kind=kind_of(fitted.model),
      classifiers=_digest(classifiers),
      log_inverse_propensity=fitted.log_inverse_propensity,
      **({} if fitted.depth is None else {"depth": fitted.depth}),
      **fitted.model._asdict(),  # pyright: ignore[reportAttributeAccessIssue]  (every kind is a NamedTuple)
    )
  with atomic_write(folder / RECORD) as file:
    json.dump(record, file, indent=2, ensure_ascii=False)
    file.write("\n")
  return folder / ARRAYS


def load_fusion(classifiers: LabelClassifiers) -> FittedFusion:
  """Returns the fusion that `save_fusion` wrote beside the classifiers. Nothing in the file is executed (no pickle).

  Raises: UserError if there is none, it is damaged, or it was fitted with other classifiers.
  """
  path = classifiers.folder / ARRAYS
  again = "Fit it with python -m retrieval_jax.fuse, with the MODEL_DIR and data of the classifiers."
  if not path.is_file():
    raise UserError(f"{path}: no fusion was fitted for these classifiers. {again}")
  try:
    with np.load(path) as file:
      found = {name: file[name] for name in file.files}
    saved, kind = str(found["classifiers"]), KINDS[str(found["kind"])]
    propensities, depth = found["log_inverse_propensity"], found.get("depth")
    fields = {
      name: value if value.ndim else float(value) for name, value in found.items() if name not in _OWN
    }
    model = kind(**fields)
  except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
    raise UserError(f"{path} is damaged ({error}). {again}") from error
  if saved != _digest(classifiers) or len(propensities) != len(classifiers.weights):
    raise UserError(f"{path} was fitted with other classifiers than those that lie there now. {again}")
  return FittedFusion(model, propensities, None if depth is None else int(depth))


def fitted_split(classifiers: LabelClassifiers) -> str | None:
  """Returns the split that the fusion beside the classifiers was fitted on, "unknown" if it does not say; None: there is no
  fusion."""
  if not (classifiers.folder / ARRAYS).exists():
    return None
  try:
    return str(json.loads((classifiers.folder / RECORD).read_bytes())["split"])
  except (OSError, ValueError, KeyError, TypeError):
    return "unknown"


def _digest(classifiers: LabelClassifiers) -> str:
  """Returns what tells these classifiers from others: a hash of their manifest."""
  return hashlib.sha256(json.dumps(classifiers.record, sort_keys=True).encode()).hexdigest()[:16]
