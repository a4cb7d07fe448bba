"""HTML by hand: escaping, elements, tables."""

from retrieval_jax.reporting.markup import Html, data_text, element, escaped, figures, folded, missing, table
from tests.reporting.run_files import EVIL


def test_everything_but_html_is_escaped():
  assert escaped("<b> & \"'") == "&lt;b&gt; &amp; &quot;&#x27;"
  assert escaped(Html("<b>")) == "<b>"
  assert escaped(3.5) == "3.5"
  assert escaped("a\x00b\x1b\ud800\n") == "a\ufffdb\ufffd?\n"


def test_an_element_escapes_its_children_and_attributes():
  found = element("p", "x < y", Html("<br>"), class_="note", aria_label='a "b"')
  assert found == '<p class="note" aria-label="a &quot;b&quot;">x &lt; y<br></p>'
  assert "<script" not in data_text(EVIL)


def test_a_table_escapes_its_cells_and_sets_numbers_to_the_right():
  found = table(["name", "<n>"], [["a & b", 1]])
  assert "<th>name</th>" in found
  assert '<th class="number">&lt;n&gt;</th>' in found
  assert '<td>a &amp; b</td><td class="number">1</td>' in found
  assert found.startswith('<div class="scroll"')


def test_small_parts():
  assert figures([]) == ""
  assert folded("more", "<x>") == "<details><summary>more</summary>&lt;x&gt;</details>"
  assert missing("Nothing.", "do <it>") == '<p class="note">Nothing. <code>do &lt;it&gt;</code></p>'
