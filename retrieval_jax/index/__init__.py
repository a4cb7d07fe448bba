"""Indexes: the k best passages of a corpus for each query. One file per method."""
