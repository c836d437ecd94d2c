"""``python -m prepserver``: the same as ``prepserver``."""

import sys

from prepserver.cli import main

sys.exit(main())
