"""Packed datasets: writing them. Samples of any source go into a few large files, their JPEGs indexed.

`command` is ``prepserver pack``; `run` plans, goes on where an earlier run was stopped, and writes; `crew` keeps
the processes that transcode; `transcode` does one image. Reading is `prepserver.source.readers.packed`'s part.
"""
