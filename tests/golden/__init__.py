"""Digests of rows made by earlier versions of the code, in ``rows.json``, and how to rebuild it.

The bytes of a row are a promise to everyone who resumes from a checkpoint. `python -m tests.golden` writes the file
again, which is right only when a change of bytes is meant, and then CHANGELOG says so.
"""
