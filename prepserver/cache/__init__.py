"""Caches of samples: a table and entries in a memfd or a file, which workers fill and read.

The daemon makes a cache and decides how large it may grow and when it ends; workers write entries and publish them;
clients never see one. An entry holds a record's columns; this package does not know what they mean.
"""
