"""The library's reader of compiled programs, as the tests call it."""

from retrieval_jax.compiled_program import KINDS, Collective, arrays, collectives

__all__ = ["KINDS", "Collective", "arrays", "collectives"]
