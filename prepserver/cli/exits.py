"""Exit codes, the same for every command, so that scripts and unit files can tell the causes apart."""

from __future__ import annotations

OK = 0
FAILED = 1  # any other error; the text names it
USAGE = 2  # an argument or a setting is not valid
NO_DAEMON = 3  # the command asks a daemon, and none runs in the runtime directory
ALREADY_RUNNING = 4  # start: another daemon holds the runtime directory
NO_PERMISSION = 5  # this user may not use the runtime directory or the daemon

EPILOG = (
    "exit codes: 0 ok; 1 failed; 2 bad argument or setting; 3 no daemon runs; 4 a daemon runs already; 5 no permission"
)


class CommandError(Exception):
    """Ends the command: `prepserver.cli.main` prints the text to stderr and returns `code`."""

    def __init__(self, text: object, code: int = FAILED) -> None:
        super().__init__(str(text))
        self.code = code
