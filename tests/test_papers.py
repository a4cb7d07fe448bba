"""The papers' own settings: each file is a whole training, says where it comes from, and its step compiles at full size.

Nothing is trained and no array is made: steps are compiled of shapes alone, as `plan` does it, for CPU devices.
"""

import importlib.util
import math
import pathlib
import re

import gin
import jax
import pytest

from retrieval_jax import configuration, launch
from retrieval_jax.abstract_batch import AssumedData
from retrieval_jax.planned_step import layout_of, shapes_of, traced_step
from tests.papers import (
  BAGS,
  CLASSIFIERS,
  CONFIGS,
  FIELDS,
  FILES,
  ROOT,
  SHARED,
  TRAININGS,
  commands,
  configure,
  fields,
  literal,
  planned,
)

BAG_ROWS = 3 * 8  # of each of its three tables 8, ROWS_MULTIPLE


@pytest.fixture(autouse=True)
def _clean_gin():
  gin.clear_config()
  yield
  gin.clear_config()


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


def test_the_page_of_the_papers_names_every_file():
  page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
  assert [name for name in FILES if name not in SHARED and name.removeprefix("papers/") not in page] == []


def test_a_plan_assumes_nothing_of_the_data_that_the_files_say():
  assert planned("papers/samtone/msmarco_base.gin")[1] == AssumedData(query_length=64, passage_length=256)
