"""Self-attention of MiniLM and T5 base, ours (einsum, heads before length) against jax.nn.dot_product_attention: CPU seconds.

Forward alone and forward with backward, queries, keys and values given, padding mask (and T5's position bias) applied.
The rounds alternate and each form takes its best, so the ratio holds on a noisy machine.

  python scripts/benchmarks/attention.py --rounds 5
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from retrieval_jax.models.attention import attend

SHAPES = {
  "MiniLM, 64 x 128": (64, 128, 12, 32, False),
  "MiniLM, 128 x 32": (128, 32, 12, 32, False),
  "T5 base, 16 x 128": (16, 128, 12, 64, True),
}

Form = Callable[[jax.Array, jax.Array, jax.Array | None], jax.Array]


def ours(x: jax.Array, mask: jax.Array, bias: jax.Array | None) -> jax.Array:
  q, k, v = (part.transpose(0, 2, 1, 3) for part in x)
  return attend(q, k, v, mask, bias).transpose(0, 2, 1, 3)


def library(x: jax.Array, mask: jax.Array, bias: jax.Array | None) -> jax.Array:
  q, k, v = x
  return jax.nn.dot_product_attention(q, k, v, bias=bias, mask=mask[:, None, None, :], scale=1.0)


def compiled(
  form: Form, kind: str, x: jax.Array, mask: jax.Array, bias: jax.Array | None
) -> Callable[[], jax.Array]:
  """Returns a call of the jitted form, forward or its gradient in x."""
  if kind == "forward":
    run = jax.jit(lambda x: form(x, mask, bias))
  else:
    run = jax.jit(jax.grad(lambda x: jnp.sum(form(x, mask, bias) ** 2)))
  return lambda: run(x)


def cpu_seconds(run: Callable[[], jax.Array], repeats: int) -> float:
  start = time.process_time()
  for _ in range(repeats):
    jax.block_until_ready(run())
  return (time.process_time() - start) / repeats


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--repeats", type=int, default=3)
  flags = parser.parse_args()
  print(f"{'':<20}{'':<10}{'ours CPU s':>12}{'library CPU s':>15}{'library / ours':>16}{'difference':>12}")
  for name, (batch, length, heads, width, biased) in SHAPES.items():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, batch, length, heads, width)) * width**-0.25, jnp.float32)
    mask = jnp.asarray(np.arange(length) < rng.integers(1, length + 1, (batch, 1)))
    bias = jnp.asarray(rng.normal(size=(1, heads, length, length)), jnp.float32) if biased else None
    for kind in ("forward", "gradient"):
      runs = {form.__name__: compiled(form, kind, x, mask, bias) for form in (ours, library)}
      results = {form: run() for form, run in runs.items()}
      best = dict.fromkeys(runs, float("inf"))
      for _ in range(flags.rounds):
        for form, run in runs.items():
          best[form] = min(best[form], cpu_seconds(run, flags.repeats))
      difference = float(jnp.abs(results["ours"] - results["library"]).max())
      print(
        f"{name:<20}{kind:<10}{best['ours']:>12.4f}{best['library']:>15.4f}{best['library'] / best['ours']:>16.2f}"
        f"{difference:>12.1e}"
      )


if __name__ == "__main__":
  main()
