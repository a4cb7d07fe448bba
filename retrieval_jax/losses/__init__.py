"""Losses: pure components on embeddings, state in and state out. One file per family."""
