"""The processes that fill rows and scan sources: zygote, worker loop, indexer, and the daemon's hold on them.

Dataset storage may hang or lie, and files may crash a decoder: only these processes ever touch either.
Knows tasks and rows, not jobs, batches or clients.
"""
