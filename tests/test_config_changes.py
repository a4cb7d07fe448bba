"""Settings of two runs compared by gin's text of them."""

from retrieval_jax.config_changes import changed_settings, other_settings

BEFORE = """from __gin__ import dynamic_registration
import retrieval_jax

# Macros:
# ======
GRAVITY_ALPHA = 0.05
TRAIN_STEPS = 10
DATA_PATH = \\
    'a/long/path'
TERMS = \\
    {'a': 1,
     'b': 2}
OLD = 1

# Parameters for train:
# =====
train.model_dir = %MODEL_DIR
"""


def test_what_differs_is_named_once():
  after = BEFORE.replace("0.05", "0.9").replace("'b': 2", "'b': 3").replace("OLD = 1", "NEW = 1")
  assert changed_settings(BEFORE, after) == [
    "GRAVITY_ALPHA: was 0.05, is 0.9",
    "TERMS: was {'a': 1, 'b': 2}, is {'a': 1, 'b': 3}",
  ]


def test_what_may_differ_is_not_named():
  assert changed_settings(BEFORE, BEFORE.replace("TRAIN_STEPS = 10", "TRAIN_STEPS = 20")) == []
  assert changed_settings("", BEFORE) == []


def test_a_value_on_the_next_line_is_the_same_value():
  assert changed_settings("A = 'x'", "A = \\\n    'x'") == []


def test_settings_of_two_processes():
  first, own = "A = 1\nDATA_PATH = 'x'\nD = 4", "A = 3\nB = \\\n    2\nDATA_PATH = 'y'\nD = 4"
  assert other_settings(first, own) == ["A: here 3, on process 0 1", "B: here 2, on process 0 not set"]
  assert other_settings(own, own) == []
