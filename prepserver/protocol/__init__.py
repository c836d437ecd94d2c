"""What crosses a process boundary: messages and their codec, and the formats of a ring, a packed record and a trace.

Pure and shared with the client: nothing here opens a socket, reads a clock or touches memory.
"""
