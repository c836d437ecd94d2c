"""Remote workers with Ray itself: a cluster on this machine whose raylets are killed.

Ray is too large for the extra `dev`, so that CI skips this file; `tests/integration/test_remote_workers.py` covers the
daemon's side there. To run it: ``pip install 'prepserver[ray]'``, then ``pytest tests/fault/test_ray.py``. It takes two
minutes and 2 GB, and listens on 127.0.0.1 only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import PrepClient, SourceUnavailable
from prepserver.pipeline.sources import ImageFolder
from tests.support import ray_cluster_path
from tests.support.clients import OPS, Rows, inline_rows, read, rows_of
from tests.support.remote import bridge_of, ray_engine, remote_workers
from tests.support.server import Server, environment
from tests.support.tiny_images import photo_tree
from tests.support.waiting import wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install 'prepserver[ray]'")
pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

COUNT = 600
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 30}
