"""Every macro that README and docs/ name in code is one that a gin file has, or that the example on the page defines."""

import re

import pytest

from retrieval_jax import configuration
from tests.docs.pages import PAGES, ROOT, name_of

SPAN = re.compile(r"`([A-Z][A-Z0-9_]{2,})(?:`|\s?=[^=])")
SHIPPED = configuration.macros_set(
  [configuration.GinFile(path, ()) for path in sorted((ROOT / "configs").rglob("*.gin"))], ()
)
# Variables of the environment, files, and names that are said not to be ours.
OTHERS = {
  "coming_from.md": {
    "MIXTURE_OR_TASK_MODULE",
    "TASK_FEATURE_LENGTHS",
    "CHECKPOINT_PATH",
    "EVAL_STEPS",
    "RANDOM_SEED",
  },
  "quickstart.md": {"RUN", "PYTHON"},
}
ENVIRONMENT = re.compile(r"(?:RETRIEVAL_)?JAX_\w+|HF_HUB_OFFLINE|XLA_FLAGS|PYTHONPATH|STOPPED|MFU|NAME")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_macro_in_code_is_there(page):
  text = page.read_text(encoding="utf-8")
  defined = (
    set(re.findall(r"^\s*([A-Z]\w+) = ", text, re.MULTILINE)) if page.name.startswith("add_a_") else set()
  )
  known = SHIPPED.keys() | defined | OTHERS.get(page.name, set())
  unknown = {name for name in SPAN.findall(text) if name not in known and not ENVIRONMENT.fullmatch(name)}
  assert not unknown, sorted(unknown)


def test_the_check_can_fail():
  assert SPAN.findall("`BATCH_SIZE=64`, `SEED`, `FROZEN = ()`, `a NAME`, BETA, `x`") == [
    "BATCH_SIZE",
    "SEED",
    "FROZEN",
  ]
  assert "BATCH_SIZE" in SHIPPED
  assert "BACTH_SIZE" not in SHIPPED
