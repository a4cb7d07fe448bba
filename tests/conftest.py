"""Test session: 8 fake CPU devices, cheap compilation, a persistent compilation cache, rank promotion raises."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "jax"

os.environ.setdefault("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in os.environ["XLA_FLAGS"]:
  os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
# XLA's CPU client has as many threads as cores or devices. The 8 participants of a collective take 8 of them, and one that any
# other work holds then keeps the eighth waiting for ever (seen on 2 cores: "only 7 of them arrived on time").
os.environ.setdefault("NPROC", "16")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("RETRIEVAL_JAX_CACHE", str(ROOT / ".cache" / "tests"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from jaxtyping import install_import_hook  # noqa: E402  (after the environment that jax reads at import)

import tests.typecheck  # noqa: E402, F401  (the hook looks it up as an attribute of the package)

# Shapes and types of every call into these are checked against their annotations.
CHECKED = ("losses", "scoring", "models", "metrics", "batching", "encoding", "train_step", "embeddings")
CHECKED += ("classifier_losses", "classifier_step", "classifiers", "label_unions", "sparse_optimizers")
CHECKED += ("table_updates",)
install_import_hook([f"retrieval_jax.{name}" for name in CHECKED], "tests.typecheck.check")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def oracles() -> pathlib.Path:
  """The folder of reference numbers."""
  return pathlib.Path(__file__).parent / "oracles"


@pytest.fixture
def data_dir() -> pathlib.Path:
  """The folder of real data sets named by RETRIEVAL_JAX_DATA; skips without it."""
  folder = os.environ.get("RETRIEVAL_JAX_DATA")
  if not folder:
    pytest.skip("RETRIEVAL_JAX_DATA is not set")
  return pathlib.Path(folder)
