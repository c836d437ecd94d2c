"""``prepserver pack`` writes packed datasets: samples of any source go into a few large files, their JPEGs indexed.

`command` parses the command line; `run` plans, resumes and writes; `crew` keeps the processes that transcode;
`transcode` does one image. `prepserver.source.readers.packed` reads the datasets.
"""
