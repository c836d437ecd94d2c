"""``prepserver tune``: finds the workers, prefetch, cache and packing for a machine, dataset and training step."""
