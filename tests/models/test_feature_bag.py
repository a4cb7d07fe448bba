"""The feature-bag tower: values by hand, padding, the Gramian paper's sharing of tables, bad input."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax.errors import UserError
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower

FEATURES = (("id", 4), ("ngrams", 5))
TOWER = FeatureBagTower(FEATURES, embed_dim=2, hidden_dims=(2, 1))


def params_by_hand() -> dict:
  return {
    "token_embedder": {
      "id": {"embedding": jnp.array([[9.0, 9], [1, 0], [0, 1], [2, 2]])},
      "ngrams": {"embedding": jnp.array([[9.0, 9], [1, 1], [3, -1], [0, 0], [5, 5]])},
    },
    "encoder": {
      "layers_0": {"kernel": jnp.array([[1.0, -1], [0, 0], [1, -1], [0, 1]]), "bias": jnp.array([0.0, 1.0])},
      "layers_1": {"kernel": jnp.array([[2.0], [1.0]]), "bias": jnp.array([-10.0])},
    },
  }


def test_value_by_hand():
  # id 1 is [1, 0]; n-grams {1, 2} have the mean [2, 0]; x = [1, 0, 2, 0]; hidden = relu([1 + 2, -1 - 2 + 1]) = [3, 0].
  bags = {"id": np.array([[1]]), "ngrams": np.array([[1, 2, 0]])}
  assert_allclose(TOWER.apply({"params": params_by_hand()}, bags, train=False), [[2 * 3 + 0 - 10]])
  rectified = TOWER.clone(final_relu=True)
  assert_allclose(rectified.apply({"params": params_by_hand()}, bags, train=False), [[0.0]])


def test_padding_and_order_change_nothing_and_an_empty_bag_is_zero():
  apply = lambda bags: TOWER.apply({"params": params_by_hand()}, bags, train=False)  # noqa: E731
  one = apply({"id": np.array([[2]]), "ngrams": np.array([[2, 4]])})
  other = apply({"id": np.array([[0, 2]]), "ngrams": np.array([[4, 0, 2, 0]])})
  assert_allclose(one, other)
  # No n-grams: x = [1, 0, 0, 0], hidden = [1, 0].
  assert_allclose(apply({"id": np.array([[1]]), "ngrams": np.array([[0, 0]])}), [[2 - 10.0]])


def test_the_paper_s_pair_shares_the_tables_alone():
  model = dual_encoder(FeatureBagTower(FEATURES, embed_dim=50), sharing="ade_ste")
  tree = jax.eval_shape(model.init, jax.random.key(0))
  assert set(tree) == {"token_embedder", "query_encoder", "passage_encoder"}
  count = sum(leaf.size for leaf in jax.tree.leaves(tree))
  assert count == (4 + 5) * 50 + 2 * (100 * 256 + 256 + 256 * 64 + 64)
  assert model.embed_dim == 64
  axes = model.logical_axes()
  assert axes["token_embedder"]["id"]["embedding"] == ("vocab", "embed")
  assert axes["query_encoder"]["layers_0"]["kernel"] == ("embed", "mlp")


def test_gradients_reach_only_the_rows_in_the_bags():
  model = dual_encoder(TOWER, sharing="ade_ste")
  params = nn.unbox(jax.jit(model.init)(jax.random.key(1)))
  bags = {"id": np.array([[1], [3]]), "ngrams": np.array([[1, 2], [2, 0]])}
  gradient = jax.grad(lambda p: jnp.sum(model.encode_queries(p, bags) ** 2))(params)
  assert not np.any(gradient["token_embedder"]["id"]["embedding"][jnp.array([0, 2])])
  assert not np.any(gradient["token_embedder"]["ngrams"]["embedding"][jnp.array([0, 3, 4])])


def test_lists_from_a_configuration_do():
  tower = FeatureBagTower([("id", 4)], embed_dim=2, hidden_dims=[3])
  assert hash(tower) == hash(FeatureBagTower((("id", 4),), embed_dim=2, hidden_dims=(3,)))


def test_bad_input_is_named():
  with pytest.raises(UserError, match=r"reads the features \['id', 'ngrams'\], got \['id'\]"):
    TOWER.apply({"params": params_by_hand()}, {"id": np.array([[1]])}, train=False)
  with pytest.raises(UserError, match="at least one feature and one hidden layer"):
    FeatureBagTower((), embed_dim=2)
  with pytest.raises(UserError, match="a feature-bag tower has not: set SHARING = 'ade_ste'"):
    dual_encoder(TOWER, sharing="ade_spl")
