"""Settings read from gin's text, by hand and by gin, and the shipped files."""

import pytest

from retrieval_jax.reporting.gin_text import assignments, normal, shipped_text, with_includes


def test_values_are_joined_and_comments_left_out():
  text = """# A = 0
from __gin__ import dynamic_registration
include 'models/minilm.gin'

A = 1  # one
A = 2
TEXT = 'a # b'  # c
EMPTY =
LONG = \\
    (('batch', 'data'),
     ('vocab', None))
terms = {
    'samtone': (1.0, @in_batch.samtone()),  # (
}
scope/bert.BertEncoder.x = %A
"""
  assert assignments(text) == {
    "A": "2",
    "TEXT": "'a # b'",
    "EMPTY": "",
    "LONG": "(('batch', 'data'), ('vocab', None))",
    "terms": "{ 'samtone': (1.0, @in_batch.samtone()), }",
    "scope/bert.BertEncoder.x": "%A",
  }


@pytest.mark.parametrize(
  "one, other, same",
  [
    ("2e-4", "0.0002", True),
    ('"a"', "'a'", True),
    ("@samtone()", "@in_batch.samtone()", True),
    ("@eval/samtone()", "@in_batch.samtone()", False),
    ("(1, 2)", "(1,2)", True),
    ("1", "True", False),
    ("%A", "%B", False),
  ],
)
def test_equal_values_have_one_spelling(one, other, same):
  assert (normal(one) == normal(other)) is same


def test_a_shipped_file_comes_after_what_it_includes():
  layers = with_includes("models/bert_tiny.gin")
  assert [name for name, _ in layers][-2:] == ["models/minilm.gin", "models/bert_tiny.gin"]
  assert layers[-1][1]["bert.BertEncoder.num_layers"] == "2"
  assert with_includes("no/such.gin") == []
  assert shipped_text("../README.md") is None
  assert shipped_text(__file__) is None
