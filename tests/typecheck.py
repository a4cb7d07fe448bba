"""The run-time type checker of jaxtyping's import hook: beartype, taking an int where a float is wanted (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
