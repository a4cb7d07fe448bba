import json

import numpy as np
import pytest

from retrieval_jax.classifiers import LabelClassifiers
from retrieval_jax.errors import UserError
from retrieval_jax.fusion_file import ARRAYS, RECORD, FittedFusion, kind_of, load_fusion, save_fusion
from retrieval_jax.fusion_model import PairFeatures
from retrieval_jax.linear_fusion import LinearFusion
from retrieval_jax.tree_fusion import LEAF, TreeFusion

LINEAR = LinearFusion(np.array([2.0, 1.0, -0.5]), -1.25)
TREE = TreeFusion(
  np.array([0, LEAF, LEAF], np.int32),
  np.array([0.5, -2, -2]),
  np.array([1, -1, -1], np.int32),
  np.array([2, -1, -1], np.int32),
  np.array([0.3, 0.1, 0.9]),
  2.0,
)
LOGS = np.float32([0.5, 1.5, 2.5])


@pytest.fixture
def classifiers(tmp_path):
  return LabelClassifiers(np.eye(3, 2, dtype=np.float32), 7, tmp_path, {"weights": "abc"})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("model, kind", [(LINEAR, "linear"), (TREE, "tree")])
def test_stored_is_loaded(classifiers, model, kind):
  path = save_fusion(classifiers, FittedFusion(model, LOGS), {"kind": kind})
  assert path == classifiers.folder / "fusion.npz"
  found = load_fusion(classifiers)
  assert kind_of(found.model) == kind
  assert type(found.model) is type(model)
  np.testing.assert_array_equal(found.log_inverse_propensity, LOGS)
  rng = np.random.default_rng(0)
  features = PairFeatures(*rng.normal(size=(3, 50)).astype(np.float32))
  np.testing.assert_array_equal(found.model.scores(features), model.scores(features))
  assert found.model.describe() == model.describe()
  assert json.loads((classifiers.folder / RECORD).read_text("utf-8")) == {"kind": kind}


def test_nothing_in_the_file_is_pickled(classifiers):
  save_fusion(classifiers, FittedFusion(TREE, LOGS), {})
  with np.load(classifiers.folder / ARRAYS, allow_pickle=False) as file:
    assert all(file[name].dtype.kind in "ifU" for name in file.files)


def test_a_second_fit_replaces_the_first(classifiers):
  save_fusion(classifiers, FittedFusion(LINEAR, LOGS), {"first": True})
  save_fusion(classifiers, FittedFusion(TREE, LOGS), {"second": True})
  assert kind_of(load_fusion(classifiers).model) == "tree"
  assert sorted(path.name for path in classifiers.folder.iterdir()) == [RECORD, ARRAYS]
  assert json.loads((classifiers.folder / RECORD).read_text("utf-8")) == {"second": True}


def test_none_was_fitted(classifiers):
  with pytest.raises(
    UserError, match=r"fusion\.npz: no fusion was fitted for these classifiers\. Fit it with"
  ):
    load_fusion(classifiers)


def test_of_other_classifiers(classifiers):
  save_fusion(classifiers, FittedFusion(LINEAR, LOGS), {})
  with pytest.raises(UserError, match="was fitted with other classifiers than those that lie there now"):
    load_fusion(classifiers._replace(record={"weights": "def"}))
  with pytest.raises(UserError, match="was fitted with other classifiers"):
    load_fusion(classifiers._replace(weights=np.eye(4, 2)))


def _cut(path):
  path.write_bytes(path.read_bytes()[:100])


def _text(path):
  path.write_text("no archive", encoding="utf-8")


def _field(path):
  with np.load(path) as file:
    kept = {name: file[name] for name in file.files if name != "bias"}
  np.savez(path, **kept)


def _kind(path):
  with np.load(path) as file:
    kept = {name: file[name] for name in file.files} | {"kind": np.array("forest")}
  np.savez(path, **kept)


@pytest.mark.parametrize("damage", [_cut, _text, _field, _kind])
def test_a_damaged_file_is_named(classifiers, damage):
  damage(save_fusion(classifiers, FittedFusion(LINEAR, LOGS), {}))
  with pytest.raises(
    UserError, match=r"fusion\.npz is damaged \(.*Fit it with python -m retrieval_jax\.fuse"
  ):
    load_fusion(classifiers)
