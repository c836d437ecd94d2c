"""``python -m prepserver.cli``: the same as ``prepserver``."""

import sys

from prepserver.cli import main

sys.exit(main())
