"""The shipped seqio Tasks, one module a benchmark; importing a module registers its Task."""
