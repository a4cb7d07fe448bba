"""The same loss curve on every mesh: 1, 2, 4 and 8 devices, by data, FSDP, tensor parallel, replicas and mixes of them."""

import pathlib
import re

import jax
import numpy as np
import pytest

from retrieval_jax.partitioning import partitioner, standard_rules
from tests import three_trainings

FSDP = standard_rules(parameter_partitioning_dims=2)
# Devices and arguments of `partitioner`.
MESHES = {
  "2 data": (2, {}),
  "4 data": (4, {}),
  "8 data": (8, {}),
  "8 FSDP": (8, {"rules": FSDP}),
  "2 model": (2, {"num_partitions": 2}),
  "4 data x 2 model": (8, {"num_partitions": 2}),
  "4 FSDP x 2 model": (8, {"num_partitions": 2, "rules": FSDP}),
  "2 replicas x 2 FSDP x 2 model": (8, {"ici_mesh_shape": (2, 2, 2), "rules": FSDP}),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return three_trainings.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def on_one(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
  """The curve of each training on one device."""
  part, folder = partitioner(devices=jax.devices()[:1]), tmp_path_factory.mktemp("one")
  return {
    name: three_trainings.train_on(part, folder / name, three_trainings.flags(name, data))
    for name in three_trainings.NAMES
  }


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", three_trainings.NAMES)
def test_the_curve_is_that_of_one_device(name, mesh, data, on_one, tmp_path):
  count, arguments = MESHES[mesh]
  part = partitioner(devices=jax.devices()[:count], **arguments)
  found = three_trainings.train_on(part, tmp_path / "run", three_trainings.flags(name, data))
  assert len(found) == three_trainings.STEPS
  np.testing.assert_allclose(found, on_one[name], rtol=1e-5, atol=1e-5)
  assert max(on_one[name]) - min(on_one[name]) > 1e-3  # it is a curve


def test_fsdp_holds_an_eighth_of_the_parameters_and_of_the_optimizer(data, tmp_path):
  def bytes_a_device(rules):
    part = partitioner(rules=rules)
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    three_trainings.train_on(
      part, folder, (*three_trainings.flags("sde_samtone", data), "--gin.TRAIN_STEPS=1")
    )
    text = (folder / "model-info.txt").read_text(encoding="utf-8")
    found = re.findall(r"^(parameters|optimizer): .* ([\d,]+) bytes a device$", text, re.MULTILINE)
    return {part: int(size.replace(",", "")) for part, size in found}

  plain, split = bytes_a_device(standard_rules()), bytes_a_device(FSDP)
  assert plain["optimizer"] > 2 * plain["parameters"]  # AdamW's two slots, and its counters
  for part in ("parameters", "optimizer"):
    assert split[part] == pytest.approx(plain[part] / 8, rel=0.01)
