"""What crosses a process boundary: messages, their codec, and the layouts of a ring and of a packed record.

Pure and shared with the client: nothing here opens a socket, reads a clock or touches memory.
"""
