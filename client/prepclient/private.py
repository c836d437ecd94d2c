"""A daemon of one's own: started for this process, gone with it, in a directory that nobody else knows."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import prepserver
from prepclient.errors import NoServer
from prepclient.transport import connect

_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 10.0


class PrivateDaemon:
    """A daemon that ends when this process does, however it does.

    Args:
        workers: Its worker processes.

    Attributes:
        runtime_dir: Where it listens.

    Raises:
        NoServer: It did not come up; the text has the end of its log.
    """

    def __init__(self, workers: int) -> None:
        base = os.environ.get("XDG_RUNTIME_DIR")
        self.runtime_dir = Path(tempfile.mkdtemp(prefix="prepserver-", dir=base if base else None))
        self._owner_pid = os.getpid()
        self._log = (self.runtime_dir / "log").open("w+")
        command = [
            *(sys.executable, "-m", "prepserver.cli", "start", "--workers", str(workers)),
            *("--runtime-dir", str(self.runtime_dir), "--lifeline", str(os.getpid())),
        ]
        root = Path(prepserver.__file__).resolve().parents[1]
        paths = (str(root), os.environ.get("PYTHONPATH", ""))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        # A session of its own: Ctrl-C in the terminal is for the training script, which then ends its daemon.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=env, start_new_session=True
        )
        atexit.register(self.close)
        try:
            self._wait_up()
        except BaseException:
            self.close()
            raise

    def _wait_up(self) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                connect(self.runtime_dir).close()
            except NoServer:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    self._log.seek(0)
                    tail = self._log.read()[-2000:].strip()
                    raise NoServer(
                        f"the private daemon (workers=) did not come up: {tail or 'it said nothing'}"
                    ) from None
                time.sleep(0.01)
            else:
                return

    def close(self) -> None:
        """Ends it. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._owner_pid or self._log.closed:
            return
        atexit.unregister(self.close)
        if self._process.poll() is None:
            # twice: there is no job to drain for
            for _ in range(2):
                self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_STOP_TIMEOUT_S)
        self._log.close()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)
