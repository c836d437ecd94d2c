"""What rows were, before the code that makes them changed: ``rows.json``, and how it is made anew.

The bytes of a row are a promise to everyone who goes on from a checkpoint. `python -m tests.golden` writes the file
again, which is right only when a change of bytes is meant, and then CHANGELOG says so.
"""
