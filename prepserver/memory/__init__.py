"""Shared memory: sealed memfd segments, their mappings, and how much may be taken. The client uses it too."""
