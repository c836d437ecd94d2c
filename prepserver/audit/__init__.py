"""What each job was given, on disk, and the proof of it: a compact log per job, its history, the verdict.

The daemon writes the log (`prepserver.daemon.ledger`), `prepserver audit` and `prepserver replay` read it, while the
job runs and after. Everything here but `logfile` is a pure function of the log's lines; nothing here knows sockets,
pixels or a running scheduler.
"""
