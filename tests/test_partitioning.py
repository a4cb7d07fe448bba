"""The mesh and its rules."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from retrieval_jax.errors import UserError
from retrieval_jax.partitioning import partitioner


def test_default_mesh_is_data_parallel():
  assert dict(partitioner().mesh.shape) == {"data": 8, "model": 1}
  assert dict(partitioner(num_partitions=4).mesh.shape) == {"data": 2, "model": 4}


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
  with pytest.raises(UserError, match=r"\('mlp', 'modle'\).*expected 'data', 'model' or None"):
    partitioner(rules=(("mlp", "modle"),))


def test_indivisible_dimension_names_parameter_axis_and_divisors():
  abstract = {"token_embedder": {"embedding": jax.ShapeDtypeStruct((30523, 4), jnp.float32)}}
  axes = {"token_embedder": {"embedding": ("vocab", "embed")}}
  with pytest.raises(
    UserError, match=r"parameter token_embedder/embedding: axis 'vocab' has 30523 entries, .*2 'model'"
  ):
    partitioner(num_partitions=2).shardings(abstract, axes)


def test_batch_size_check():
  partitioner().check_batch_size(16)
  with pytest.raises(UserError, match=r"BATCH_SIZE=4 .* 8 data shards .* Nearest valid values: 8"):
    partitioner().check_batch_size(4)
