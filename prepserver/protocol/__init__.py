"""What crosses a process boundary: message schemas, their codec and the layout of a ring.

Pure and shared with the client: nothing here opens a socket, reads a clock or touches memory.
"""
