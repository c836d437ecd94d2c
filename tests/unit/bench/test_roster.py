"""Every contender has what its line in the roster says, whether its packages are installed or not."""

from __future__ import annotations

import ast

import pytest

from bench.harness.fingerprint import ROOT
from bench.peers.roster import FORMS, OWN, PEERS
from bench.peers.sheets import TARGETS

PACKAGE = ROOT / "bench" / "peers"


def functions(module: str) -> set[str]:
    tree = ast.parse((PACKAGE / "contenders" / f"{module}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("key", PEERS)
def test_a_contender_has_its_module_requirements_and_data(key: str) -> None:
    peer = PEERS[key]
    assert "open_loader" in functions(peer.module)
    assert ("serve" in functions(peer.module)) >= peer.serves
    assert peer.venv == OWN or (PACKAGE / "requirements" / f"{peer.venv}.txt").exists()
    assert peer.form is None or peer.form in FORMS


@pytest.mark.parametrize("name", FORMS)
def test_a_form_has_who_writes_it(name: str) -> None:
    assert "build" in functions(FORMS[name].module)


def test_targets_and_the_method_name_existing_contenders() -> None:
    named = {which["peer"] for target in TARGETS for which in (target.first, target.second) if which}
    assert named <= set(PEERS)
    method = (ROOT / "docs" / "benchmarks.md").read_text()
    missing = [peer.name for peer in PEERS.values() if peer.name.split(",")[0] not in method]
    assert missing == []
