"""The whole decision about jobs, as pure functions: who gets which place, which rows are made next, and who is told.

Events go in, actions come out (`prepserver.schedule.coordinator`). Nothing here opens a socket, reads a clock or knows
a tensor, so a test can drive millions of histories through it. `prepserver.daemon` feeds it and does what it wants.
"""
