"""What cases measure with. Other Python interpreters import this, so it imports nothing."""
