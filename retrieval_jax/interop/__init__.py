"""Readers of other people's checkpoints."""
