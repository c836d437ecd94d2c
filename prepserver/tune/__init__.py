"""``prepserver tune``: finds workers, prefetch, cache and packing for this machine, data and training step."""
