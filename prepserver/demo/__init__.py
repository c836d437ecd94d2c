"""``prepserver demo``: several real training processes on one shared stream, then each on its own DataLoader."""
