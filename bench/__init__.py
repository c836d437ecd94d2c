"""Measurements of prepserver: ``python -m bench --list``."""
