"""Every gin file that README and docs/ show in a block parses, and names components and parameters that exist."""

import gin
import pytest

from retrieval_jax import configuration, launch
from tests.docs.pages import PAGES, blocks, name_of
from tests.docs.test_commands import RUN_BY

CONFIGS = str(launch.configs_dir())
BEGIN = "from __gin__ import dynamic_registration"
# The pages of RUN_BY are run as they are; their files import modules of their own.
BLOCKS = [
  (name_of(page), block.line, "\n".join(block.lines))
  for page in PAGES
  if name_of(page) not in RUN_BY
  for block in blocks(page.read_text(encoding="utf-8"))
  if BEGIN in block.lines
]


@pytest.fixture(autouse=True)
def _clean_gin():
  gin.clear_config()
  yield
  gin.clear_config()


@pytest.mark.parametrize("page, line, text", BLOCKS, ids=[f"{page}:{line}" for page, line, _ in BLOCKS])
def test_a_gin_file_parses_behind_a_training_s(tmp_path, page, line, text):
  (tmp_path / "shown.gin").write_text(text, encoding="utf-8")
  names = ("runs/train.gin", "models/minilm.gin", "losses/sogram.gin", str(tmp_path / "shown.gin"))
  files = configuration.collect(names, [CONFIGS])
  bindings = ("MODEL_DIR = '/tmp/none'", "TRAIN_STEPS = 1000")
  configuration.parse(files, bindings, [CONFIGS])
  if "TRAIN_DATA" not in configuration.macros_set(files, ()):
    gin.parse_config("TRAIN_DATA = None")
  configuration.check("train.train", files, bindings)


def test_there_are_some():
  assert {"docs/data.md", "docs/gramian.md"} <= {page for page, _, _ in BLOCKS}
