"""What counts as a compilation, and which of them are reported."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import monitoring

from retrieval_jax.compilations import Compilations

WARNING = "compiled anew after the first step"


def doubled() -> Callable:
  """Returns a function that no other test has compiled."""

  @jax.jit
  def doubled_plus_seven(x):
    return 2 * x + 7

  return doubled_plus_seven


def test_each_shape_and_dtype_counts_once():
  f, g = doubled(), np.ones(3, np.float32)
  with Compilations() as found:
    assert found.count == 0
    f(g).block_until_ready()
    f(g + 1).block_until_ready()
    assert found.count == 1
    f(np.ones(4, np.float32))
    f(np.ones(3, np.int32))
    assert found.count == 3
    assert found.seconds > 0
  f(np.ones(5, np.float32))
  assert found.count == 3  # the block is over


def test_a_program_of_the_persistent_cache_counts_too():
  hits = []

  def hit(event: str, **_: str | int) -> None:
    if event.endswith("/cache_hits"):
      hits.append(event)

  doubled()(np.ones(6, np.float32))  # now at the latest it is in the cache of the test session
  again = doubled()
  monitoring.register_event_listener(hit)
  try:
    with Compilations() as found:
      again(np.ones(6, np.float32))
  finally:
    monitoring.unregister_event_listener(hit)
  assert len(hits) == 1
  assert found.count == 1


def test_compiling_ahead_of_the_first_run_compiles_once():
  f, x = doubled(), jnp.ones(7)
  with Compilations() as found:
    f.lower(x).compile()
    f(x).block_until_ready()
    assert found.count == 1


def test_only_what_comes_late_and_unexpected_is_reported_and_only_once(capsys):
  f = doubled()
  with Compilations() as found:
    f(np.ones(8, np.float32))
    found.report(1)
    found.settle()
    f(np.ones(8, np.float32))
    with found.expected():
      f(np.ones(9, np.float32))
    found.report(2)
    assert (found.count, found.unexpected) == (2, 0)
    assert capsys.readouterr().err == ""

    with found.expected(), found.expected(False):
      f(np.ones(10, np.float32))
    found.report(3)
    assert (found.count, found.unexpected) == (3, 1)
    assert (
      "warning: step 3: jit(doubled_plus_seven) compiled anew after the first step" in capsys.readouterr().err
    )
    f(np.ones(11, np.float32))
    found.report(4)
    assert found.unexpected == 2
    assert capsys.readouterr().err == ""
