"""The shipped gin files, installed as package data of retrieval_jax.configs."""
