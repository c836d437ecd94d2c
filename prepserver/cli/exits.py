"""Exit codes: the same for every command, so that scripts and unit files can tell cases apart."""

from __future__ import annotations

OK = 0
FAILED = 1  # something went wrong that has no code of its own; the text says what
USAGE = 2  # an argument or a setting that cannot be
NO_DAEMON = 3  # status, stop: no daemon runs in the runtime directory
ALREADY_RUNNING = 4  # start: another daemon holds the runtime directory
NO_PERMISSION = 5  # the runtime directory or the daemon may not be used by this user

EPILOG = (
    "exit codes: 0 ok; 1 failed; 2 bad argument or setting; 3 no daemon runs; 4 a daemon runs already; 5 no permission"
)
