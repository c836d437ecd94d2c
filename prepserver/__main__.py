"""``python -m prepserver`` and the script ``prepserver``: nothing is imported where Ctrl-C would show a traceback."""

import sys


def main() -> int:
    """Runs the command line; see `prepserver.cli.main`."""
    try:
        from prepserver.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
