"""Shared memory: sealed memfd segments, their mappings, and how much may be taken.

Shared with the client. Knows sizes and descriptors, not what a row means to anybody.
"""
