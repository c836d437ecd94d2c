"""Which rows are made next, by whom, and who is told: pure decisions.

Events go in, actions come out. Nothing here opens a socket, reads a clock or knows a tensor, so a test can
drive millions of histories through it. The shell that feeds it is `prepserver.daemon`.
"""
