"""Parameter sharing, names, counts, and pretrained weights that fit or do not."""

import jax
import numpy as np
import pytest
from jax import tree_util
from numpy.testing import assert_array_equal

from retrieval_jax import sharding
from retrieval_jax.errors import UserError
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import SHARING, dual_encoder
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower

V, D, P, MLP = 16, 8, 4, 16
BERT = BertEncoder(num_layers=1, num_heads=2, embed_dim=D, mlp_dim=MLP, max_positions=32)
TOWER = Tower(BERT, vocab_size=V, projection_dim=P)

EMBEDDER = V * D
# Positions, two token types and their norm; four attention maps; the MLP; two norms.
ENCODER = (32 + 2) * D + 2 * D + 4 * (D * D + D) + (D * MLP + MLP) + (MLP * D + D) + 2 * 2 * D
PROJECTION = D * P


def count(tree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def params():
  """Parameters of each scheme."""
  return {name: jax.jit(dual_encoder(TOWER, sharing=name).init)(jax.random.key(0)) for name in SHARING}


@pytest.mark.parametrize(
  "sharing, names, size",
  [
    ("sde", {"token_embedder", "encoder", "projection_layer"}, EMBEDDER + ENCODER + PROJECTION),
    (
      "ade_spl",
      {
        "query_token_embedder",
        "passage_token_embedder",
        "query_encoder",
        "passage_encoder",
        "projection_layer",
      },
      2 * (EMBEDDER + ENCODER) + PROJECTION,
    ),
    (
      "ade_ste",
      {
        "token_embedder",
        *(f"{side}_{part}" for side in ("query", "passage") for part in ("encoder", "projection_layer")),
      },
      EMBEDDER + 2 * (ENCODER + PROJECTION),
    ),
    (
      "ade",
      {
        f"{side}_{part}"
        for side in ("query", "passage")
        for part in ("token_embedder", "encoder", "projection_layer")
      },
      2 * (EMBEDDER + ENCODER + PROJECTION),
    ),
  ],
)
def test_names_and_count_of_a_scheme(params, sharing, names, size):
  assert set(params[sharing]) == names
  assert count(params[sharing]) == size


def test_every_scheme_is_in_the_table_above():
  assert set(SHARING) == {"sde", "ade", "ade_ste", "ade_fte", "ade_spl"}


def test_ade_fte_is_ade_ste_with_the_token_embedder_frozen(params):
  assert jax.tree.structure(params["ade_fte"]) == jax.tree.structure(params["ade_ste"])
  assert dual_encoder(TOWER, sharing="ade_fte").frozen_paths == ("token_embedder/.*",)
  assert all(not dual_encoder(TOWER, sharing=s).frozen_paths for s in SHARING if s != "ade_fte")


def test_parts_that_are_not_shared_start_different(params):
  tree = params["ade_spl"]
  assert (tree["query_token_embedder"]["embedding"] != tree["passage_token_embedder"]["embedding"]).all()


def test_sides_use_their_own_parameters(params):
  model = dual_encoder(TOWER, sharing="ade_spl")
  tokens = np.array([[3, 4, 5]], np.int32)
  query = jax.jit(model.encode_queries)(params["ade_spl"], tokens)
  passage = jax.jit(model.encode_passages)(params["ade_spl"], tokens)
  assert np.abs(query - passage).max() > 1e-2
  swapped = {
    name.replace("query", "x").replace("passage", "query").replace("x", "passage"): part
    for name, part in params["ade_spl"].items()
  }
  assert_array_equal(jax.jit(model.encode_passages)(swapped, tokens), query)


def test_sde_gives_both_sides_the_same_embedding(params):
  model = dual_encoder(TOWER)
  tokens = np.array([[3, 4, 5]], np.int32)
  assert_array_equal(
    jax.jit(model.encode_queries)(params["sde"], tokens),
    jax.jit(model.encode_passages)(params["sde"], tokens),
  )


@pytest.mark.parametrize("sharing", SHARING)
def test_logical_axes_are_the_tree_of_init_with_known_names(params, sharing):
  axes = dual_encoder(TOWER, sharing=sharing).logical_axes()
  is_axes = lambda leaf: isinstance(leaf, tuple)  # noqa: E731
  assert jax.tree.structure(axes, is_leaf=is_axes) == jax.tree.structure(params[sharing])
  leaves = tree_util.tree_leaves_with_path(axes, is_leaf=is_axes)
  for (path, names), leaf in zip(leaves, jax.tree.leaves(params[sharing]), strict=True):
    assert len(names) == leaf.ndim, path
    assert set(names) <= {*sharding.ALL, None}, path


def test_two_towers_of_different_kinds(params):
  t5 = T5Encoder(num_layers=1, num_heads=2, head_dim=4, embed_dim=D, mlp_dim=MLP)
  model = dual_encoder(TOWER, sharing="ade_spl", passage_tower=Tower(t5, vocab_size=V, projection_dim=P))
  tree = jax.eval_shape(model.init, jax.random.key(0))
  assert "position_embedding" in tree["query_encoder"]
  assert "relpos_bias" in tree["passage_encoder"]
  assert tree["projection_layer"]["kernel"].shape == (D, P)


def test_unknown_scheme_names_the_nearest():
  with pytest.raises(UserError, match=r"unknown sharing scheme 'ade_slp'.*did you mean 'ade_spl'"):
    dual_encoder(TOWER, sharing="ade_slp")


def test_unknown_activation_dtype():
  with pytest.raises(
    UserError,
    match=r"activation dtype 'bfloat': set ACTIVATION_DTYPE to 'float32' or 'bfloat16'; did you mean",
  ):
    dual_encoder(TOWER).with_dtype("bfloat")


@pytest.mark.parametrize("dtype", ["float16", "fp16", "half"])
def test_float16_is_refused(dtype):
  """A T5's MLP goes past its largest number, 65504; bfloat16 has float32's range."""
  with pytest.raises(UserError, match="ACTIVATION_DTYPE to 'float32' or 'bfloat16'"):
    dual_encoder(TOWER).with_dtype(dtype)
  with pytest.raises(UserError, match=f"activation dtype '{dtype}'"):
    dual_encoder(Tower(BERT.clone(dtype=dtype), vocab_size=V))


def test_sde_refuses_two_towers():
  with pytest.raises(UserError, match="one tower for both sides, got two different towers"):
    dual_encoder(TOWER, passage_tower=TOWER.clone(vocab_size=V + 1))


def test_ade_spl_needs_a_projection():
  with pytest.raises(UserError, match=r"a tower here has none \(projection_dim = None\)"):
    dual_encoder(TOWER.clone(projection_dim=None), sharing="ade_spl")


def test_ade_spl_needs_pooled_vectors_of_one_width():
  wide = TOWER.clone(encoder=BERT.clone(embed_dim=2 * D))
  with pytest.raises(
    UserError, match=f"pooled vectors of one width.*got {D} for queries and {2 * D} for passages"
  ):
    dual_encoder(TOWER, sharing="ade_spl", passage_tower=wide)


def test_ade_spl_needs_one_projection():
  with pytest.raises(
    UserError, match=r"needs one projection layer, got .* \(4, False, 'none'\) for queries and \(4, True"
  ):
    dual_encoder(TOWER, sharing="ade_spl", passage_tower=TOWER.clone(projection_bias=True))


@pytest.mark.parametrize("sharing", ["ade_ste", "ade_fte"])
def test_a_shared_token_embedder_needs_one_vocabulary_and_width(sharing):
  with pytest.raises(
    UserError, match=rf"'{sharing}' needs one token embedder.*\({V}, {D}\).*\({V + 1}, {D}\)"
  ):
    dual_encoder(TOWER, sharing=sharing, passage_tower=TOWER.clone(vocab_size=V + 1))


def test_a_shared_token_embedder_serves_encoders_of_two_depths():
  deep = TOWER.clone(encoder=BERT.clone(num_layers=2))
  tree = jax.eval_shape(dual_encoder(TOWER, sharing="ade_ste", passage_tower=deep).init, jax.random.key(0))
  assert "layers_1" in tree["passage_encoder"]
  assert "layers_1" not in tree["query_encoder"]


def test_scores_need_equal_widths():
  with pytest.raises(UserError, match=f"queries get {P} dimensions and passages {P + 1}"):
    dual_encoder(TOWER, sharing="ade", passage_tower=TOWER.clone(projection_dim=P + 1))


def test_with_pretrained_fills_both_towers_and_leaves_the_projection(params):
  model = dual_encoder(TOWER, sharing="ade_spl")
  source = {part: params["sde"][part] for part in ("token_embedder", "encoder")}
  filled = model.with_pretrained(params["ade_spl"], jax.tree.map(np.asarray, source))
  for side in ("query", "passage"):
    jax.tree.map(assert_array_equal, filled[f"{side}_encoder"], source["encoder"])
    jax.tree.map(assert_array_equal, filled[f"{side}_token_embedder"], source["token_embedder"])
  assert_array_equal(filled["projection_layer"]["kernel"], params["ade_spl"]["projection_layer"]["kernel"])
  assert jax.tree.structure(filled) == jax.tree.structure(params["ade_spl"])


def test_with_pretrained_takes_two_towers_and_refuses_two_values_for_a_shared_part(params):
  query = jax.tree.map(np.asarray, dict(params["sde"]))
  passage = jax.tree.map(lambda x: x + 1, query)
  passage["projection_layer"] = query["projection_layer"]
  model = dual_encoder(TOWER, sharing="ade_spl")
  filled = model.with_pretrained(params["ade_spl"], query, passage)
  jax.tree.map(assert_array_equal, filled["passage_encoder"], passage["encoder"])
  jax.tree.map(assert_array_equal, model.portable_params(filled, "query"), query)
  with pytest.raises(UserError, match="differ in token_embedder, which the sharing scheme makes one"):
    dual_encoder(TOWER, sharing="ade_ste").with_pretrained(params["ade_ste"], query, passage)


def test_with_pretrained_lists_what_does_not_fit(params):
  model = dual_encoder(TOWER)
  source = jax.tree.map(np.asarray, params["sde"])
  source["token_embedder"] = {"embedding": np.zeros((V + 3, D), np.float32)}
  del source["encoder"]["embedding_layer_norm"]["bias"]
  source["encoder"]["layers_1"] = {"scale": np.zeros(3, np.float32)}
  source["lm_head"] = {"kernel": np.zeros((D, V), np.float32)}
  with pytest.raises(UserError) as caught:
    model.with_pretrained(params["sde"], source)
  text = str(caught.value)
  assert f"token_embedder/embedding: got ({V + 3}, {D}), expected ({V}, {D})" in text
  assert f"encoder/embedding_layer_norm/bias: got nothing, expected ({D},)" in text
  assert "encoder/layers_1/scale: got (3,), but the model has no such parameter" in text
  assert f"lm_head/kernel: got ({D}, {V}), but the model has no such parameter" in text
  assert "INITIAL_CHECKPOINT_PATH = None" in text
