"""The processes that fill rows and list sources (zygote, worker, indexer), and the daemon's side of them.

Dataset storage may hang, and files may crash a decoder: only these processes touch either. They know tasks and rows,
but no jobs, batches or clients.
"""
