"""Objects in Azurite, Azure's own emulator (`npm install -g azurite`), on the loopback."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepserver.pipeline.sources import SourceSpec
from prepserver.source import Source, build_index, open_source
from prepserver.source.storage import remote
from tests.support import datasets

obstore = pytest.importorskip("obstore", reason="az:// needs obstore")

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's account and key, the same everywhere."""


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty container."""
    if (program := shutil.which("azurite-blob")) is None:
        pytest.skip("needs azurite-blob on the PATH: npm install -g azurite")
    options = ["--blobPort", "0", "--location", str(tmp_path_factory.mktemp("azurite")), "--skipApiVersionCheck"]
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen([program, *options, "--disableTelemetry"], stdout=subprocess.PIPE, text=True) as azurite,
    ):
        try:
            assert azurite.stdout is not None
            said = next(line for line in azurite.stdout if "successfully listen" in line)
            (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)", said)
            _make_container(int(port), "data")
            patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", _ACCOUNT)
            patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _KEY)
            patch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}/{_ACCOUNT}")
            patch.setenv("AZURE_ALLOW_HTTP", "true")
            remote._rules, remote._link = remote._Rules(("az://data",)), None
            yield "az://data"
        finally:
            azurite.kill()
            remote._rules, remote._link = remote._Rules(), None


def _make_container(port: int, name: str) -> None:
    """Ask for it as Azure's protocol has it; obstore cannot."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join([*lines, f"/{_ACCOUNT}/{_ACCOUNT}/{name}", "restype:container"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{signature}"
    connection.request("PUT", f"/{_ACCOUNT}/{name}?restype=container", headers=headers)
    assert (answer := connection.getresponse()).status == 201, answer.read()
    connection.close()


def opened(spec: SourceSpec, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


@pytest.mark.parametrize("made", datasets.FORMATS)
def test_azure_gives_what_the_disk_gives(made: datasets.Format, container: str, tmp_path: Path) -> None:
    """Listing, wildcards, whole objects and ranges."""
    (folder := tmp_path / "here").mkdir()
    spec = made(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"{tmp_path.name}/{path.relative_to(folder)}"
            obstore.put(remote.link().store(container), key, path.read_bytes())
    on_disk, there = opened(spec(str(folder)), tmp_path), opened(spec(f"{container}/{tmp_path.name}"), tmp_path)
    datasets.check_same_samples(there, on_disk)
