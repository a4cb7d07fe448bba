"""retrieval_jax: dual-encoder retrieval in JAX. Importing it loads neither JAX nor TensorFlow."""

__version__ = "0.1.0"
