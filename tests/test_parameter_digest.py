"""The hash of parameters: another one for every other value or place, the same on every number of devices."""

import jax
import numpy as np

from retrieval_jax.parameter_digest import parameter_digest
from retrieval_jax.partitioning import partitioner


def test_a_digest_of_parameters_depends_on_every_value_and_place_and_on_no_device():
  values = {"a": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8), "b": np.array([0, 1], np.float32)}
  expected = parameter_digest(values)
  assert parameter_digest(jax.tree.map(np.copy, values)) == expected
  for devices in (2, 8):
    mesh = partitioner(devices=jax.devices()[:devices], num_partitions=2)
    split = jax.device_put(values["a"], jax.NamedSharding(mesh.mesh, jax.P("data", "model")))
    assert parameter_digest({**values, "a": split}) == expected
  others = [
    {**values, "a": values["a"].T},
    {**values, "a": values["a"][::-1]},
    {**values, "b": np.array([1, 0], np.float32)},
    {**values, "b": np.array([-0.0, 1], np.float32)},
    {**values, "a": np.nextafter(values["a"], np.float32(2))},
  ]
  assert len({expected, *map(parameter_digest, others)}) == 6
