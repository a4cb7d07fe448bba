"""The numbers in the papers' own settings are those of their sources, and other rows of their tables are a file more."""

import math

import gin
import jax
import jax.numpy as jnp
import pytest

from retrieval_jax.classifier_state import abstract_state
from retrieval_jax.classifier_step import ClassifierStepOptions, make_classifier_step
from retrieval_jax.label_unions import UnionBatch
from retrieval_jax.partitioning import partitioner
from tests.papers import BAGS, CLASSIFIERS, OWN, built, commands, configure, literal, planned


@pytest.fixture(autouse=True)
def _clean_gin():
  gin.clear_config()
  yield
  gin.clear_config()


# Points in training, batch, epochs, tokens, and (epoch, nominal cluster size).
NGAME = {
  "lf_amazontitles_131k": (294_805, 1600, 300, 32, tuple(zip((10, 20, 25, 50, 75, 100, 125, 150, 200),
                           (2, 4, 8, 16, 32, 64, 128, 256, 512), strict=True))),
  "lf_amazon_131k": (294_805, 700, 400, 128, ((10, 512),)),
  "lf_wikiseealso_320k": (693_082, 1024, 300, 256, ((10, 512),)),
  "lf_wikipedia_500k": (1_813_391, 512, 40, 256, ((10, 16), (25, 32))),
  "lf_amazontitles_1_3m": (2_248_619, 1600, 400, 32, tuple(zip((10, 25, 50, 75, 100, 125, 150, 200),
                           (8, 16, 32, 64, 128, 256, 512, 1024), strict=True))),
}  # fmt: skip


@pytest.mark.parametrize("name", NGAME)
def test_ngame_s_batches_are_those_of_its_sources(name):
  points, size, epochs, tokens, nominal = NGAME[name]
  file = f"papers/ngame/{name}.gin"
  recipe, _ = planned(file)
  assert recipe.batcher.batch_size == size
  assert literal(file, "TRAIN_STEPS") == epochs * (points // size)
  assert literal(file, "QUERY_LENGTH") == literal(file, "PASSAGE_LENGTH") == tokens
  divisors = [n for n in range(1, size + 1) if size % n == 0]
  expected = {0: 1}
  for epoch, cluster in nominal:
    real = points / 2 ** math.ceil(math.log2(points / cluster))
    expected[epoch] = min(divisors, key=lambda n: abs(math.log(n / real)))
  for epoch in range(epochs):
    start = max(e for e in expected if e <= epoch)
    assert recipe.batcher.cluster_size(epoch) == expected[start], epoch
  assert recipe.batcher.refresh_epochs == 5
  classifier_steps = next(w for w in commands(file)[1] if w.startswith("--gin.TRAIN_STEPS="))
  assert classifier_steps == f"--gin.TRAIN_STEPS={100 * (points // 2048)}"


@pytest.mark.parametrize(
  "name, rates",
  [
    ("papers/samtone/msmarco_base.gin", {0: 1e-3, 10_000: 5e-4, 20_000: 0.0}),
    ("papers/samtone/multireqa_xxl.gin", {0: 1e-3, 10_000: 5e-4, 20_000: 0.0}),
    ("papers/ngame/lf_amazontitles_131k.gin", {0: 0.0, 100: 2e-4, 27_650: 1e-4, 55_200: 0.0}),
    ("papers/gramian/en.gin", {1: 0.01, 1_000_000: 0.01}),
  ],
)
def test_learning_rates(name, rates):
  configure(
    "plan", [name], [*OWN[:1], BAGS] if "gramian" in name else list(OWN[:1]) if "ngame" in name else []
  )
  steps = literal(name, "TRAIN_STEPS")
  gin.parse_config(f"TRAIN_STEPS = {steps}")
  optimizer = built("OPTIMIZER")
  for step, rate in rates.items():
    assert optimizer.learning_rates(step)["learning_rate"] == pytest.approx(rate, abs=1e-9)
    if "gramian" in name:
      assert optimizer.learning_rates(step)["table_learning_rate"] == pytest.approx(rate, abs=1e-9)


@pytest.mark.parametrize(
  "name, macros",
  [
    ("papers/samtone/msmarco_large.gin", {"SHARING": "ade_spl", "TEMPERATURE": 0.01, "BATCH_SIZE": 512}),
    ("papers/samtone/msmarco_xxl.gin", {"SHARING": "sde", "TEMPERATURE": 0.01, "TRAIN_STEPS": 20_000}),
    ("papers/ngame/lf_wikipedia_500k.gin", {"MARGIN": 0.3, "HARDEST_NEGATIVES": 10}),
    ("papers/gramian/simple.gin", {"GRAVITY_WEIGHT": 10.0, "GRAVITY_ALPHA": 0.01, "GRAVITY_BATCHES": "two"}),
    ("papers/gramian/fr.gin", {"GRAVITY_WEIGHT": 10.0, "GRAVITY_ALPHA": 0.001, "BATCH_SIZE": 1024}),
    ("papers/gramian/en.gin", {"GRAVITY_ALPHA": 0.001, "TRAIN_EXAMPLES": "pairs", "GRAVITY_START": "zero"}),
  ],
)
def test_numbers_that_the_papers_print(name, macros):
  assert {macro: literal(name, macro) for macro in macros} == macros


@pytest.mark.parametrize("pages, name", [(4_600_000, "simple"), (142_000_000, "fr"), (490_000_000, "en")])
def test_gramian_s_steps_are_five_passes(pages, name):
  assert literal(f"papers/gramian/{name}.gin", "TRAIN_STEPS") == 5 * (pages * 9 // 10 // 1024)


@pytest.mark.parametrize(
  "name, more",
  [
    *(
      ("papers/samtone/msmarco_base.gin", more)
      for more in (
        ["losses/in_batch.gin"],
        ["losses/pair.gin"],
        ["losses/pair_two_stage.gin"],
        ["losses/samtone_passage.gin"],
        ["losses/samtone_both.gin"],
        ["losses/pair.gin", "sharing/sde.gin"],
        ["sharing/ade.gin"],
        ["sharing/sde.gin"],
      )
    ),
    *(
      ("papers/ngame/lf_amazontitles_131k.gin", more)
      for more in (
        ["batching/shuffled.gin"],
        ["batching/tas.gin"],
        ["batching/shuffled.gin", "negatives/ance.gin"],
      )
    ),
    *(
      ("papers/gramian/simple.gin", more)
      for more in (["losses/batch_gravity.gin"], ["losses/sagram.gin"], ["optimizers/sgd.gin"])
    ),
  ],
  ids=lambda value: "+".join(value) if isinstance(value, list) else value.split("/")[1],
)
def test_another_row_of_a_table_is_one_file_more(name, more):
  bindings = ["MODEL_DIR = '/tmp/none'", *(b for b in OWN[:1] if "msmarco" not in name)]
  if "gramian" not in name:
    bindings += ["VOCABULARY_PATH = 'somewhere'", "INITIAL_CHECKPOINT_PATH = 'somewhere'"]
  configure("train", [name, *more], bindings)


def test_the_losses_of_samtone_s_rows_differ():
  """Each file that the head names takes effect behind the paper's own."""
  found = []
  for more in ([], ["losses/in_batch.gin"], ["losses/pair.gin"], ["losses/samtone_both.gin"]):
    gin.clear_config()
    configure("plan", ["papers/samtone/msmarco_base.gin", *more], [])
    found.append(gin.query_parameter("LOSS/gin.macro.value").selector.rsplit(".", 1)[-1])
    both = gin.config_str().count('side = "both"') + gin.config_str().count("side = 'both'")
    assert both == (more == ["losses/samtone_both.gin"])
  assert found == ["samtone", "in_batch_softmax", "pair", "samtone"]


def test_the_classifiers_step_is_traced_at_full_size():
  """131,073 labels of 768 numbers, 2,048 points, a union of 8,192 labels."""
  configure(
    "train_classifiers",
    ["models/distilbert_base.gin", CLASSIFIERS],
    [*OWN, "VOCABULARY_PATH = 'somewhere'", "TRAIN_STEPS = 14300"],
  )
  batcher, loss, optimizer = built("BATCHER"), built("CLASSIFIER_LOSS"), built("CLASSIFIER_OPTIMIZER")
  assert batcher.batch_size == 2048
  doubled = [(10 + 5 * k, 2 ** (k + 1)) for k in range(7)]
  assert batcher.cluster_sizes == ((0, 1), *doubled)
  assert float(optimizer.learning_rate(500)) == pytest.approx(1e-3)
  options = gin.get_configurable("classifier_step.ClassifierStepOptions")()
  assert options == ClassifierStepOptions(0.5, 0, 10)
  labels, d, q, u = 131_073, 768, 2048, 8192
  state = abstract_state(labels, d, optimizer, partitioner())
  batch = UnionBatch(
    points=jax.ShapeDtypeStruct((q, d), jnp.float32),
    labels=jax.ShapeDtypeStruct((u,), jnp.int32),
    own=jax.ShapeDtypeStruct((q,), jnp.int32),
    positives=jax.ShapeDtypeStruct((q, 16), jnp.int32),
    filtered=jax.ShapeDtypeStruct((q, 1), jnp.int32),
    weights=jax.ShapeDtypeStruct((q,), jnp.float32),
  )
  step = make_classifier_step(loss, optimizer, num_labels=labels, seed=0, options=options)
  new, metrics = jax.eval_shape(step, state, batch)
  assert jax.tree.map(lambda x: x.shape, new) == jax.tree.map(lambda x: x.shape, state)
  assert metrics["loss"].shape == ()
