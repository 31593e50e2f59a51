"""Tools offered to agents: schema from signature and docstring, errors as data."""
