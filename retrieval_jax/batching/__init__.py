"""Batchers: which examples share a batch, and with that which negatives exist. Plain numpy, one file per policy."""
