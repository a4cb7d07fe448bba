"""Every shipped gin file: parses in its place, defines the component its folder stands for, and builds."""

import pathlib

import gin
import jax
import pytest

from retrieval_jax import configuration, launch
from retrieval_jax.losses import gramian_state
from retrieval_jax.losses.base import DataSizes

CONFIGS = launch.configs_dir()
COMPONENT = {
  "models": "MODEL",
  "losses": "LOSS",
  "batching": "BATCHER",
  "optimizers": "OPTIMIZER",
  "data": "TRAIN_DATA",
  "searchers": "SEARCHER",
  "evaluators": "EVALUATORS",
  "indexes": "INDEX",
  "fusion": "FUSION",
  "partitioning": "PARTITIONING",
}
# These need what other files bring: data, inputs, a checkpoint.
NEEDS_OTHERS = (
  "evaluators/",
  "searchers/hybrid",
  "searchers/classifiers",
  "searchers/fused_heads",
  "searchers/heads",
)
# What a file leaves to the user, with a value to try it with.
REQUIRED = {
  "VOCABULARY_PATH": "'package:seqio/test_data/sentencepiece/sentencepiece.model'",
  "DATA_PATH": "'somewhere'",
  "MIXTURE_OR_TASK_NAME": "'pydocs'",
  "TFDS_NAME": "'squad'",
  "TASKS": "{'pydocs': 1.0}",
  "TRAIN_STEPS": "1000",
  "BATCH_SIZE": "128",
  "MODEL_DIR": "'/tmp/none'",
  "NUM_EMBEDDINGS": "100",
  "INITIAL_CHECKPOINT_PATH": "None",
  "BAG_VOCABULARY_PATH": repr(str(pathlib.Path(__file__).parent / "models" / "bags.json")),
  "EVAL_TASKS": "('pydocs',)",
}
FILES = sorted(str(p.relative_to(CONFIGS)) for p in CONFIGS.rglob("*.gin"))


@pytest.fixture(autouse=True)
def _clean_gin():
  gin.clear_config()
  yield
  gin.clear_config()


def parse(*names: str, bindings: tuple[str, ...] = ()) -> list[configuration.GinFile]:
  paths = [str(CONFIGS)]
  files = configuration.collect(names, paths)
  configuration.parse(files, bindings, paths)
  return files


def required_of(files: list[configuration.GinFile]) -> tuple[str, ...]:
  assigned = configuration.macros_set(files, ())
  text = "\n".join(p.read_text(encoding="utf-8") for f in files for p in f.flat())
  # Feature-bag towers fit their vocabulary on TRAIN_DATA, unless a file is named.
  data = ("TRAIN_DATA = None",) if "%TRAIN_DATA" in text and "TRAIN_DATA" not in assigned else ()
  return (*data, *(f"{n} = {v}" for n, v in REQUIRED.items() if f"%{n}" in text or n in assigned))


@pytest.mark.parametrize("name", FILES)
def test_file_parses_and_its_component_builds(name):
  folder = name.split("/")[0]
  files = parse(name)
  for binding in required_of(files):
    gin.parse_config(binding)
  if folder not in COMPONENT:
    return
  macro = COMPONENT[folder]
  assert macro in configuration.macros_set(files, ()), f"{name} does not define {macro}"
  if not name.startswith(NEEDS_OTHERS):
    gin.parse_config(f"retrieval_jax_test_probe.value = %{macro}")
    built = gin.get_configurable("retrieval_jax_test_probe")()
    assert built is not None
    if folder == "models":
      abstract = jax.eval_shape(built.init, jax.random.key(0))
      assert all(leaf.dtype == "float32" for leaf in jax.tree.leaves(abstract))


@pytest.mark.parametrize("name", ["sogram", "samtone_sogram", "softmax_sogram"])
def test_a_gravity_knows_whether_its_gramians_are_of_unit_vectors(name):
  """gin wraps the score that a file names."""
  parse(f"losses/{name}.gin")
  gin.parse_config("retrieval_jax_test_probe.value = %LOSS")
  loss = gin.get_configurable("retrieval_jax_test_probe")()
  _, state = loss.init(jax.random.key(0), embed_dim=4, data=DataSizes(2, 2))
  assert bool(gramian_state.states(state)["gravity"].unit) == (name != "sogram")


@gin.configurable
def retrieval_jax_test_probe(value):
  return value


@pytest.mark.parametrize("name", [f for f in FILES if f.startswith("experiments/")])
def test_experiment_is_complete_but_for_the_model_dir(name):
  paths = [str(CONFIGS)]
  files = configuration.collect(["runs/train.gin", name], paths)
  bindings = ["MODEL_DIR = '/tmp/none'"]
  configuration.parse(files, bindings, paths)
  configuration.check("train.train", files, bindings)


@pytest.mark.parametrize("name", FILES)
def test_file_starts_with_a_comment_that_says_what_it_is(name):
  first = (CONFIGS / name).read_text(encoding="utf-8").split("\n")[0]
  assert first.startswith("# ")
  assert len(first) > 20


def test_required_values_are_of_macros_that_exist():
  text = "\n".join(pathlib.Path(CONFIGS / name).read_text(encoding="utf-8") for name in FILES)
  assert [name for name in REQUIRED if name not in text] == []
