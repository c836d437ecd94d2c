"""``python -m bench``."""

from __future__ import annotations

import signal
import sys

from bench.harness.command import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # daemons and jobs are ended then, too
    sys.exit(main(sys.argv[1:]))
