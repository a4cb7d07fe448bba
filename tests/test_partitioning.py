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


def test_unknown_axis_names_the_nearest():
  with pytest.raises(UserError, match="logical axis 'vocap' has no partitioning rule; did you mean 'vocab'"):
    partitioner().spec(("vocap",))


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
