"""The log of the rows that each job got, and the proof from it that each sample came exactly once.

The daemon writes the log (`prepserver.daemon.ledger`); `prepserver audit` and `prepserver replay` read it while the job
runs and afterwards. In reading order: `records` (the lines), `logfile` (the file), `stays` (attachments), `history`
(epochs), `training` (shards), `proof` (samples). All but `logfile` are pure functions of the log's lines.
"""
