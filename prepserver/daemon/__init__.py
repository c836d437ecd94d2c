"""The daemon: one poll loop around the scheduler, its workers and its clients.

The shells of this room own sockets, processes and the clock; every decision about rows is the scheduler's.
"""
