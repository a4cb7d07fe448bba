"""The rules from logical to mesh axes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from retrieval_jax.errors import UserError
from retrieval_jax.partitioning import partitioner, standard_rules


def test_spec_follows_the_rules():
  assert partitioner().spec(("vocab", "embed")) == PartitionSpec("model", None)


def test_the_first_rule_wins():
  rules = (("mlp", None), ("mlp", "model"), ("embed", "model"), ("embed", None))
  assert partitioner(rules=rules).spec(("embed", "mlp")) == PartitionSpec("model", None)


def test_a_mesh_axis_splits_an_array_once_and_the_next_rule_is_tried():
  rules = (("mlp", "model"), ("embed", "model"), ("embed", "data"))
  both = partitioner(num_partitions=2, rules=rules)
  assert both.spec(("embed", "mlp")) == PartitionSpec("data", "model")
  assert both.spec(("embed",)) == PartitionSpec("model")
  assert both.spec(("mlp", "mlp")) == PartitionSpec("model", None)
  array = jax.jit(lambda x: both.constrain(x, ("embed", "mlp")))(jnp.zeros((4, 2)))
  assert array.sharding.spec == PartitionSpec("data", "model")


def test_activations_that_do_not_divide_take_the_next_rule_or_stay_whole():
  rules = (("mlp", "data"), ("mlp", "model"), ("embed", "data"))
  both = partitioner(num_partitions=2, rules=rules)  # data 4, model 2
  laid = jax.jit(lambda x: both.constrain(x, ("mlp", "embed")))
  assert laid(jnp.zeros((6, 4))).sharding.spec == PartitionSpec("model", "data")
  assert laid(jnp.zeros((3, 3))).sharding.spec in (PartitionSpec(None, None), PartitionSpec())


def test_unknown_axis_names_the_nearest():
  message = "logical axis 'vocap' has no partitioning rule; did you mean 'vocab'"
  with pytest.raises(UserError, match=message):
    partitioner().spec(("vocap",))
  with pytest.raises(UserError, match=message):
    partitioner().constrain(jnp.zeros(4), ("vocap",))


def test_a_rule_to_a_mesh_axis_that_is_not_there():
  with pytest.raises(
    UserError, match=r"\('mlp', 'modle'\).*expected 'replica', 'data', 'model', several .* 'model'"
  ):
    partitioner(rules=(("mlp", "modle"),))


def test_indivisible_dimension_names_parameter_axes_and_nearest_values():
  abstract = {"token_embedder": {"embedding": jax.ShapeDtypeStruct((30523, 4), jnp.float32)}}
  axes = {"token_embedder": {"embedding": ("vocab", "embed")}}
  with pytest.raises(UserError) as error:
    partitioner(num_partitions=2).shardings(abstract, axes)
  message = str(error.value)
  assert "token_embedder/embedding, shape (30523, 4), axes ('vocab', 'embed')" in message
  assert "axis 'vocab' has 30,523 entries, which 2 'model' partitions do not divide" in message
  assert "Nearest valid values: 30,522 or 30,524 entries, or 1, 131, 233 partitions" in message


def test_the_batch_is_split_over_replicas_and_data():
  split = partitioner(ici_mesh_shape=(2, 2, 2))
  assert split.data_size == 4
  assert split.spec(("batch", "length", "embed")) == PartitionSpec(("replica", "data"), None, None)
  assert split.rows.spec == PartitionSpec(("replica", "data"))
  rows = split.rows.devices_indices_map((8,))
  assert sorted({(index[0].start, index[0].stop) for index in rows.values()}) == [
    (0, 2),
    (2, 4),
    (4, 6),
    (6, 8),
  ]


def test_a_rule_of_the_batch_of_one_s_own():
  own = partitioner(ici_mesh_shape=(2, 4, 1), rules=standard_rules(additional_rules=(("batch", "data"),)))
  assert own.data_size == 4
  assert own.spec(("batch", None)) == PartitionSpec("data", None)


def test_fsdp_splits_parameters_over_data_and_leaves_activations_to_the_batch():
  fsdp = partitioner(num_partitions=2, rules=standard_rules(parameter_partitioning_dims=2))
  assert fsdp.spec(("embed", "mlp")) == PartitionSpec("data", "model")
  assert fsdp.spec(("embed",)) == PartitionSpec("data")
  assert fsdp.spec(("batch", "length", "embed")) == PartitionSpec(("replica", "data"), None, None)


def test_activations_may_be_split_over_model():
  both = partitioner(num_partitions=2, rules=standard_rules(activation_partitioning_dims=2))
  assert both.spec(("batch", "length", "embed")) == PartitionSpec(("replica", "data"), None, "model")
  with pytest.raises(UserError, match="parameter_partitioning_dims=3: expected 1 or 2"):
    standard_rules(parameter_partitioning_dims=3)


def test_batch_size_check():
  partitioner().check_batch_size(16)
  with pytest.raises(UserError, match=r"BATCH_SIZE=4 .* 8 data shards .* Nearest valid values: 8"):
    partitioner().check_batch_size(4)


@pytest.mark.parametrize(
  ("rules", "message"),
  [
    (7, "ADDITIONAL_AXIS_RULES=7: expected a list of pairs"),
    ("vocab", "ADDITIONAL_AXIS_RULES='vocab': expected a list of pairs"),
    (("vocab", "data"), "ADDITIONAL_AXIS_RULES: 'vocab': expected a list of pairs"),
    ((("vocab", "data", "model"),), "expected a list of pairs"),
    (((1, "data"),), "expected a list of pairs"),
    ((("vocap", "data"),), "'vocap' is no logical axis of these models; did you mean 'vocab'"),
  ],
)
def test_additional_rules_that_cannot_be(rules, message):
  with pytest.raises(UserError, match=message):
    standard_rules(additional_rules=rules)
