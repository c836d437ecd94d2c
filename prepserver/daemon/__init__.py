"""The daemon: one poll loop around the coordinator, its workers and its clients.

It owns sockets, processes, memory and the clock, and no fact about jobs: those are the coordinator's
(`prepserver.schedule`).
"""
