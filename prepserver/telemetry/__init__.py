"""What the server knows about itself: counters that each process writes for itself and the daemon reads.

Knows numbers, not what is done about them.
"""
