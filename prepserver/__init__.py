"""prepserver: a preprocessing daemon for GPU machines.

Workers read, decode and augment samples straight into rows of shared memory; training jobs map those
rows as torch tensors. See ARCHITECTURE.md for the life of a batch.
"""

__version__ = "0.3.0.dev0"
