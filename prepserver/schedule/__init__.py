"""Every decision about jobs: their places, the rows to make next, and what each rank is told.

Events go in, actions come out (`prepserver.schedule.coordinator`); `prepserver.daemon` sends the events and carries out
the actions. Nothing here opens a socket, reads a clock or knows a tensor, so tests can run millions of histories.
"""
