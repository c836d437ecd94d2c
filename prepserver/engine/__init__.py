"""Rows that are made on other machines, by actors of Ray, and how they come here.

To the daemon a remote worker is a worker: a line, a page of counters, and the rings. At the other end of the line is a
thread of the bridge (`prepserver.engine.bridge`), which speaks the zygote's protocol and has the work done by an actor
(`prepserver.engine.actor`) instead of a child.
"""
