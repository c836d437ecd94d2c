"""The loaders that prepserver is compared with. Other Python interpreters import this, so it imports nothing."""
