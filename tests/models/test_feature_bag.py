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


def test_tokens_are_cut_into_bags():
  tower = TOWER.clone(columns=(1, 3))
  apply = lambda inputs: tower.apply({"params": params_by_hand()}, inputs, train=False)  # noqa: E731
  tokens = np.array([[1, 1, 2, 0], [0, 0, 4, 0]])
  bags = tower.bags(tokens)
  assert {name: ids.tolist() for name, ids in bags.items()} == {
    "id": [[1], [0]],
    "ngrams": [[1, 2, 0], [0, 4, 0]],
  }
  assert_allclose(apply(tokens), apply(bags))
  assert_allclose(apply(tokens)[0], [2 * 3 + 0 - 10])  # by hand above
  # Length buckets cut columns of padding off, down to those of the first feature, and append some.
  assert_allclose(apply(tokens[:, :3]), apply(tokens))
  assert_allclose(apply(np.pad(tokens, ((0, 0), (0, 12)))), apply(tokens))
  assert_allclose(apply(np.array([[1]])), apply({"id": np.array([[1]]), "ngrams": np.array([[0]])}))


def test_tables_and_their_start():
  small = TOWER.clone(features=(("id", 2000), ("ngrams", 2000)), init_std={"id": 0.005})
  params = nn.unbox(
    jax.jit(small.init, static_argnames="train")(jax.random.key(0), small.example(), train=False)
  )["params"]
  assert small.table_paths == {
    "id": ("token_embedder", "id", "embedding"),
    "ngrams": ("token_embedder", "ngrams", "embedding"),
  }
  for name, std in (("id", 0.005), ("ngrams", 0.1)):
    table = params
    for part in small.table_paths[name]:
      table = table[part]
    assert table.shape == (2000, 2)
    assert_allclose(np.std(table), std, rtol=0.1)
  # How a table starts is no part of what a model computes: training goes on with another one.
  computed = dual_encoder(TOWER, sharing="ade_ste").computation()
  assert dual_encoder(TOWER.clone(init_std={"id": 0.005}), sharing="ade_ste").computation() == computed


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
  tower = FeatureBagTower([("id", 4)], embed_dim=2, hidden_dims=[3], columns=[1], init_std={"id": 0.01})
  same = FeatureBagTower((("id", 4),), embed_dim=2, hidden_dims=(3,), columns=(1,), init_std=(("id", 0.01),))
  assert hash(tower) == hash(same)


def test_bad_input_is_named():
  with pytest.raises(UserError, match=r"reads the features \['id', 'ngrams'\], got \['id'\]"):
    TOWER.apply({"params": params_by_hand()}, {"id": np.array([[1]])}, train=False)
  with pytest.raises(UserError, match="at least one feature and one hidden layer"):
    FeatureBagTower((), embed_dim=2)
  with pytest.raises(UserError, match=r"at least one column for each of its 2 features, got columns=\(1,\)"):
    FeatureBagTower(FEATURES, embed_dim=2, columns=(1,))
  with pytest.raises(UserError, match=r"init_std 'ids': 0.1; expected a feature, one of id, ngrams.*'id'"):
    FeatureBagTower(FEATURES, embed_dim=2, init_std={"ids": 0.1})
  with pytest.raises(UserError, match="does not know whose their columns are"):
    TOWER.apply({"params": params_by_hand()}, np.array([[1, 2]]), train=False)
  with pytest.raises(UserError, match="a feature-bag tower has not: set SHARING = 'ade_ste'"):
    dual_encoder(TOWER, sharing="ade_spl")
