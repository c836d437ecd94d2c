"""One file per case. Each holds a ``CASE``, and its docstring says what it asks and how it measures."""
