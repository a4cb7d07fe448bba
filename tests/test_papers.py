"""The papers' own settings: each file is a whole training, says where it comes from, and its step compiles at full size.

Nothing is trained and no array is made: steps are compiled of shapes alone, as `plan` does it, for CPU devices.
"""

import importlib.util
import math
import pathlib
import re
import shlex

import gin
import jax
import jax.numpy as jnp
import pytest

from retrieval_jax import configuration, launch
from retrieval_jax.abstract_batch import AssumedData
from retrieval_jax.classifier_state import abstract_state
from retrieval_jax.classifier_step import ClassifierStepOptions, make_classifier_step
from retrieval_jax.label_unions import UnionBatch
from retrieval_jax.partitioning import partitioner
from retrieval_jax.planned_step import layout_of, shapes_of, traced_step

ROOT = pathlib.Path(__file__).parent.parent
CONFIGS = launch.configs_dir()
FILES = sorted(str(p.relative_to(CONFIGS)) for p in (CONFIGS / "papers").rglob("*.gin"))
SHARED = [name for name in FILES if name.endswith("/shared.gin")]
CLASSIFIERS = "papers/ngame/classifiers.gin"
TRAININGS = [name for name in FILES if name not in (*SHARED, CLASSIFIERS)]
FIELDS = ("Table", "Command", "Hardware", "Expected", "Source")

# What stands in a command's place where the file leaves it to the user.
OWN = ("DATA_PATH = 'somewhere'", "MODEL_DIR = '/tmp/none'")
BAGS = f"BAG_VOCABULARY_PATH = {str(ROOT / 'tests' / 'models' / 'bags.json')!r}"
BAG_ROWS = 3 * 8  # of each of its three tables 8, ROWS_MULTIPLE


@pytest.fixture(autouse=True)
def _clean_gin():
  gin.clear_config()
  yield
  gin.clear_config()


@gin.configurable
def retrieval_jax_papers_probe(value):
  return value


def built(macro: str):
  gin.parse_config(f"retrieval_jax_papers_probe.value = %{macro}")
  return gin.get_configurable("retrieval_jax_papers_probe")()


def head(name: str) -> list[str]:
  """Returns the lines of the comment that a file begins with, without their signs."""
  lines = (CONFIGS / name).read_text(encoding="utf-8").split("\n")
  end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
  return [line.removeprefix("#").removeprefix(" ") for line in lines[:end]]


def fields(name: str) -> dict[str, str]:
  """Returns the named parts of a head comment, lines joined."""
  found, key = {}, None
  for line in head(name):
    start = re.match(rf"({'|'.join(FIELDS)}):\s*(.*)", line)
    if start:
      key = start[1]
      found[key] = start[2]
    elif key is not None:
      found[key] += "\n" + line
  return found


def commands(name: str) -> list[list[str]]:
  """Returns the words of each command of a head comment, continued lines joined."""
  text = "\n".join(head(name)).replace("\\\n", " ")
  return [shlex.split(line) for line in text.split("\n") if line.lstrip().startswith("python ")]


def configure(program: str, names: list[str], bindings: list[str]) -> None:
  """Reads and checks files as a program does."""
  paths = [str(CONFIGS)]
  files = configuration.collect([f"runs/{program}.gin", *names], paths)
  configuration.parse(files, bindings, paths)
  configuration.check(f"{program}.{launch.PROGRAMS[program].function}", files, bindings)


def planned(name: str):
  """Returns (recipe, assumed data) of a training, as `plan` has them."""
  own = [*OWN, BAGS] if "gramian" in name else list(OWN[:1]) if "ngame" in name else []
  configure("plan", [name], own)
  return gin.get_configurable("recipe.Recipe")(), gin.get_configurable("abstract_batch.AssumedData")()


def literal(name: str, macro: str):
  return configuration.literal_macro(macro, configuration.collect([name], [str(CONFIGS)]), [])


def test_every_paper_has_its_trainings():
  assert len([n for n in TRAININGS if "/samtone/" in n]) == 6
  assert len([n for n in TRAININGS if "/ngame/" in n]) == 5
  assert len([n for n in TRAININGS if "/gramian/" in n]) == 3
  assert len(SHARED) == 3


@pytest.mark.parametrize("name", [*TRAININGS, CLASSIFIERS])
def test_the_head_comment_says_where_it_comes_from_and_what_to_expect(name):
  found = fields(name)
  assert tuple(found) == FIELDS
  assert re.search(r"\d", found["Table"])
  assert re.search(r"\+-|tolerance", found["Expected"])
  # Nobody ran these here, and no file may look as if.
  assert found["Expected"].endswith("Not run here.")
  assert re.search(r"[Pp]lanned", found["Hardware"]) or name == CLASSIFIERS
  first = commands(name)[0]
  program = "train_classifiers" if name == CLASSIFIERS else "train"
  assert first[:3] == ["python", "-m", f"retrieval_jax.{program}"]
  assert f"--gin_file={name}" in first


COMMANDS = [(name, words) for name in FILES for words in commands(name)]


@pytest.mark.parametrize(
  "name, words", COMMANDS, ids=lambda value: value if isinstance(value, str) else value[2]
)
def test_a_command_is_complete(name, words):
  """Every program, file and macro is there, nothing is missing and nothing is left over."""
  if words[1] != "-m":
    assert (ROOT / words[1]).is_file()
    return
  assert importlib.util.find_spec(words[2]) is not None
  program = words[2].removeprefix("retrieval_jax.")
  flags, bindings = launch.parse_flags(program, words[3:])
  for path in flags.gin_file:
    assert (CONFIGS / path).is_file()
  files = list(flags.gin_file)
  if launch.PROGRAMS[program].reads_model:  # the model section that the trained MODEL_DIR brings
    model = re.search(r"include '(models/.*?)'", "\n".join(p.read_text() for p in _all_files(name)))
    assert model is not None
    files = [model[1], *files]
    bindings = [BAGS if "gramian" in name else "VOCABULARY_PATH = 'somewhere'", *bindings]
  configure(program, files, bindings)


def _all_files(name: str) -> list[pathlib.Path]:
  beside = [name] if name != CLASSIFIERS else ["papers/ngame/shared.gin"]
  return [path for file in configuration.collect(beside, [str(CONFIGS)]) for path in file.flat()]


# Parameters by the published sizes: of a tower of T5 1.1 tokens x d + layers x (4 d h + 3 d m + 2 d) + 32 buckets x heads + d.
def t5(layers: int, d: int, heads: int, m: int, *, towers: int) -> int:
  encoder = 32128 * d + layers * (4 * d * heads * 64 + 3 * d * m + 2 * d) + 32 * heads + d
  return towers * encoder + d * 768


def distilbert() -> int:
  d, m = 768, 3072
  layer = 4 * (d * d + d) + (d * m + m) + (m * d + d) + 2 * 2 * d
  return 30522 * d + 512 * d + 2 * d + 6 * layer


def bags(embed: int, first: int, second: int) -> int:
  return BAG_ROWS * embed + 2 * (3 * embed * first + first + first * second + second)


PARAMETERS = {
  "samtone/msmarco_base": t5(12, 768, 12, 2048, towers=2),
  "samtone/msmarco_large": t5(24, 1024, 16, 2816, towers=2),
  "samtone/msmarco_xxl": t5(24, 4096, 64, 10240, towers=1),
  "gramian/simple": bags(50, 256, 64),
  "gramian/fr": bags(100, 512, 128),
  "gramian/en": bags(120, 512, 128),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_the_training_step_is_compiled_at_full_size(name):
  """Towers, loss, optimizer and batches fit together, and have the published sizes."""
  recipe, data = planned(name)
  size = recipe.batcher.batch_size
  devices = jax.devices()[: math.gcd(size, 8)]  # 700 = 4 x 175
  mesh = gin.get_configurable("partitioning.partitioner")(devices=devices)
  shapes = shapes_of(recipe, data)
  traced = traced_step(recipe, shapes, layout_of(recipe, shapes, mesh))
  key = name.removeprefix("papers/").removesuffix(".gin").replace("multireqa", "msmarco")
  assert shapes.num_parameters == PARAMETERS.get(key, distilbert())
  assert shapes.batch.query_rows.shape == (literal(name, "BATCH_SIZE"),)
  if "gramian" not in name:
    columns = shapes.batch.query_tokens.shape[1], shapes.batch.passage_tokens.shape[1]
    assert columns == (literal(name, "QUERY_LENGTH"), literal(name, "PASSAGE_LENGTH"))
  assert traced.lower().compile() is not None


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


def test_the_page_of_the_papers_names_every_file():
  page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
  assert [name for name in FILES if name not in SHARED and name.removeprefix("papers/") not in page] == []


def test_a_plan_assumes_nothing_of_the_data_that_the_files_say():
  assert planned("papers/samtone/msmarco_base.gin")[1] == AssumedData(query_length=64, passage_length=256)
