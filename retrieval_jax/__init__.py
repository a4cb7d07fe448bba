"""retrieval_jax: dual-encoder retrieval in JAX. Importing it loads neither JAX nor TensorFlow.

`retrieval_jax.DualEncoder` is the model for notebooks and servers; JAX is loaded when it is first named.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from retrieval_jax.dual_encoder import DualEncoder

__all__ = ["DualEncoder"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
  if name == "DualEncoder":
    from retrieval_jax.dual_encoder import DualEncoder

    return DualEncoder
  raise AttributeError(f"module 'retrieval_jax' has no attribute {name!r}")
