"""Reports for people: the table of a program's end, and the page of a run. None of it loads JAX."""

from retrieval_jax.reporting.percent_table import table

__all__ = ["table"]
