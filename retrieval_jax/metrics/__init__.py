"""Metrics: numpy functions of rankings and judgements, one file per kind."""
