"""The documents match the code, and the repository keeps its own rules."""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import prepclient
import prepclient.engine
import prepserver
from prepclient.device_ops import DEVICE_OPS
from prepserver.cli import command_line, exits
from prepserver.config import FIELDS
from prepserver.pipeline.ops import OPS
from prepserver.pipeline.random_words import SampleKey
from prepserver.pipeline.record import IMAGES, with_index
from prepserver.pipeline.sources import SOURCES
from prepserver.transform.stage import FIRST, Draws

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("deploy/*.md")])
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))

# Names that say nothing of what a module is, or the wrong thing.
FORBIDDEN = {"common", "helper", "helpers", "manager", "managers", "master", "misc", "util", "utils"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """Texts between backquotes, outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands() -> set[str]:
    actions = [a for a in command_line()._actions if isinstance(a, argparse._SubParsersAction)]
    return {name for action in actions for name in action.choices}


def table(page: str, first_column: str) -> list[list[str]]:
    """Cells of the table of a page of docs/ whose head begins with `first_column`."""
    lines = (DOCS / page).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_column} |")) + 2
    rows = []
    while lines[at].startswith("|"):
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", lines[at])[1:-1]])
        at += 1
    return rows


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_make_target_in_a_document_is_in_the_makefile(document: Path) -> None:
    text = document.read_text()
    named = {
        name
        for piece in [*code_blocks(text), *spans(text)]
        for name in re.findall(r"^(?:\$ )?make ([a-z-]+)", piece, re.MULTILINE)
    }
    assert named <= targets((ROOT / "Makefile").read_text())


def test_readme_begins_with_the_two_commands_of_a_fresh_clone() -> None:
    assert code_blocks(README)[0].split("\n") == ["make demo", "make test", ""]


@pytest.mark.parametrize(("document", "most"), [("README.md", 120), ("ARCHITECTURE.md", 200)])
def test_what_one_reads_first_is_short(document: str, most: int) -> None:
    assert len((ROOT / document).read_text().splitlines()) <= most, f"{document}: its place is a page of docs/"


def test_every_module_that_architecture_names_is_there() -> None:
    roots = {"prepserver": ROOT / "prepserver", "prepclient": ROOT / "client" / "prepclient"}
    named = [span for span in spans(ARCHITECTURE) if re.fullmatch(r"prep(server|client)(\.\w+)+", span)]
    assert len(named) > 30
    for name in named:
        package, *parts = name.split(".")
        path = roots[package].joinpath(*parts)
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), name


def test_every_page_has_its_place_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = set(re.findall(r"[\w/-]+\.md", nav))
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.parent.name != "decisions"} <= listed


def test_decisions_are_numbered_without_a_gap() -> None:
    for number, path in enumerate(DECISIONS, 1):
        text = path.read_text()
        assert path.name.startswith(f"{number:04d}-"), path.name
        assert text.startswith(f"# {number}. "), path.name
        assert re.search(r"^(Date: [\d-]+\. )?Status: (accepted\.|superseded by \[)", text, re.MULTILINE), path.name
        assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == [
            "Context", "Decision", "Alternatives", "Consequences",
        ], path.name  # fmt: skip


def test_the_op_that_contributing_adds_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    what, how = [ModuleType(f"prepserver.{package}.ops.solarize") for package in ("pipeline", "transform")]
    for module, source in zip((what, how), blocks, strict=False):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(source, module.__dict__)
    op = what.Solarize(200)
    assert op.to_wire() == {"op": "Solarize", "threshold": 200}
    assert op.after(with_index(IMAGES)) == with_index(IMAGES)
    drawn = how.SolarizeStage(op, FIRST).draw(2, 3, Draws(SampleKey(0, 0, 0), FIRST))
    pixels = np.array([[[0, 199, 200], [201, 254, 255]]], np.uint8)
    assert drawn.step(pixels, None).tolist() == [[[0, 199, 55], [54, 1, 0]]]


def test_every_phony_target_has_a_rule() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets(makefile)


def test_ci_runs_the_tests_and_the_linters_without_a_terminal() -> None:
    script = ROOT / ".ci" / "run"
    text = script.read_text()
    assert os.access(script, os.X_OK)
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    made = {target for line in text.splitlines() if line.startswith("step make") for target in line.split()}
    assert {"lint", "docs", "bench-smoke", "fuzz-smoke", "coverage"} <= made
    assert "\n.ci/tests " in text
    assert "\nstep the_tests\n" in text
    assert "\nset -m\n.ci/tests " in text, "a process group, which the trap ends as a whole"
    assert 'kill -- "-$tests"' in text
    assert "</dev/null" in text
    for each in script.parent.iterdir():
        subprocess.run(["bash", "-n", str(each)], check=True)


@pytest.mark.once
@pytest.mark.parametrize(
    ("test", "code", "said"),
    [
        ("def test_it(): ...", 0, ""),
        ("def test_it(): assert 0", 1, ""),
        ("def test_it(): assert SEEN.exists() or SEEN.touch()", 0, "failed at first, passed alone: test_a.py::test_it"),
        ("import no_such_module", 1, ""),
    ],
    ids=["passes", "fails", "disturbed", "broken off"],
)
def test_ci_runs_a_few_failed_tests_again(test: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "Makefile").write_text("test:\n\t@.venv/bin/python -m pytest -n 1\n")
    (tmp_path / "test_a.py").write_text(f"from pathlib import Path\nSEEN = Path('seen')\ndef test_b(): ...\n{test}\n")
    done = subprocess.run([str(ROOT / ".ci" / "tests")], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("failed at first" in done.stdout) == bool(said)
    assert done.stdout.rstrip().endswith(said)


def test_ci_finds_a_python_by_its_version_and_passes_over_shims(tmp_path: Path) -> None:
    version = "{}.{}".format(*sys.version_info)
    shims, real = tmp_path / "shims", tmp_path / "real"
    for folder in (shims, real):
        folder.mkdir()
    (shims / f"python{version}").write_text("#!/bin/sh\nexit 127\n")
    (shims / f"python{version}").chmod(0o755)
    (real / f"python{version}").symlink_to(sys.executable)

    def found(wanted: str, *folders: Path) -> tuple[int, str]:
        path = os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"])
        environment = {"PATH": path, "HOME": str(tmp_path)}
        command = [str(ROOT / ".ci" / "python"), wanted]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert found(version, shims, real) == (0, f"{real}/python{version}\n")
    assert found("3.99", shims, real) == (1, "")


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_link_of_a_document_leads_to_a_file_or_a_heading(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        assert linked.exists(), f"{relative(document)} links to {target}"
        if anchor:
            assert anchor in anchors(linked.read_text()), f"{relative(document)} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_path_that_a_document_names_is_there(document: Path) -> None:
    tops = ("prepserver", "client", "tests", "bench", "deploy", "docs", "examples", ".ci")
    for span in spans(document.read_text()):
        is_path = re.fullmatch(r"[\w.][\w./-]*", span) and span.split("/")[0] in tops and "/" in span
        made_by_running = span.startswith("bench/out")
        if is_path and not made_by_running:
            assert (ROOT / span).exists(), f"{relative(document)} names {span}"


def test_the_version_is_the_same_everywhere() -> None:
    version = PYPROJECT["project"]["version"]
    assert prepserver.__version__ == version
    assert prepclient.__version__ == version
    assert re.search(rf"^## .*\b{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_constraints_pin_every_dependency() -> None:
    project = PYPROJECT["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    wanted = project["dependencies"] + extras + PYPROJECT["build-system"]["requires"]
    names = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in wanted}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert names <= {line.split("==")[0].lower() for line in lines if "==" in line}


def test_the_oldest_constraints_are_those_of_the_project() -> None:
    """Of what users install; ray and torchvision, which tests compare with, are not tried so old."""
    project = PYPROJECT["project"]
    extras = [names for key, names in project["optional-dependencies"].items() if key not in {"dev", "docs", "ray"}]
    wanted = {name.replace(">=", "==") for names in (project["dependencies"], *extras) for name in names}
    assert wanted == set((ROOT / "constraints-oldest.txt").read_text().splitlines()[1:])


def test_no_module_has_a_name_that_says_nothing() -> None:
    roots = [ROOT / name for name in ("prepserver", "client", "tests", "bench")]
    found = [path for root in roots for path in root.rglob("*.py") if ROOT / "bench" / "out" not in path.parents]
    named = {path: set(re.split(r"[_\W]+", path.stem)) for path in found}
    assert len(named) > 50
    assert [relative(path) for path, words in named.items() if words & FORBIDDEN] == []


def test_large_modules_say_why_and_classes_stay_small() -> None:
    """A module above some 350 lines says in its docstring why it is one; a class has 15 public methods at most."""
    unexplained, large = [], []
    for path in [*(ROOT / "prepserver").rglob("*.py"), *(ROOT / "client").rglob("*.py")]:
        text = path.read_text()
        tree = ast.parse(text)
        if text.count("\n") > 350 and "long because" not in " ".join((ast.get_docstring(tree) or "").split()):
            unexplained.append(relative(path))
        for kind in ast.walk(tree):
            if isinstance(kind, ast.ClassDef):
                methods = [each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
                values = {each.name for each in methods if "property" in map(ast.unparse, each.decorator_list)}
                if len({each.name for each in methods} - values) > 15:
                    large.append(f"{relative(path)}: {kind.name}")
    assert (unexplained, large) == ([], [])


def test_no_name_of_a_test_is_longer_than_60_characters() -> None:
    """The test's docstring holds what does not fit."""
    found = {
        (relative(path), node.name)
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert len(found) > 1000
    assert sorted((path, name) for path, name in found if len(name) > 60) == []


def test_both_packages_say_that_they_are_typed() -> None:
    for package in (prepserver, prepclient):
        assert package.__file__ is not None
        assert (Path(package.__file__).parent / "py.typed").is_file()


def test_every_package_is_in_the_import_rules_and_architecture() -> None:
    packages = {path.stem for path in (ROOT / "prepserver").iterdir() if path.is_dir() or path.suffix == ".py"}
    packages -= {"__init__", "__main__", "__pycache__"}
    layers = next(c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers")["layers"]
    assert packages <= {name.strip(" ()") for layer in layers for name in layer.split("|")}
    section = ARCHITECTURE.split("## Packages and imports")[1].split("\n## ")[0]
    assert packages <= set(spans(section))


def test_importing_the_client_imports_three_server_packages() -> None:
    code = "import sys, prepclient; print(*sorted(m for m in sys.modules if m.startswith('prepserver.')))"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {name.split(".")[1] for name in found.stdout.split()} == {"memory", "pipeline", "protocol"}


def test_documents_name_every_command_and_no_other() -> None:
    cells = " ".join(row[0] for row in table("command-line.md", "command"))
    assert set(re.findall(r"prepserver ([a-z]+)", cells)) == commands()


def test_documents_name_every_exit_code_and_no_other() -> None:
    own = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert {int(row[0]) for row in table("command-line.md", "exit code")} == own | {130}


def test_documents_name_every_error_and_no_other() -> None:
    base = prepclient.PrepClientError
    errors = {name for name, kind in vars(prepclient).items() if isinstance(kind, type) and issubclass(kind, base)}
    errors |= {prepclient.engine.DeviceUnavailable.__name__}
    listed = {row[0].strip("`").removeprefix("device.") for row in table("errors.md", "error")}
    assert listed == errors - {base.__name__}


def test_documents_name_every_setting_with_its_default() -> None:
    automatic = {
        "workers": '"auto"', "memory_bytes": '"auto"', "runtime_dir": "the first of four", "source_roots": "[]",
        "plugins": "[]",
        "plugin_read": "[]", "worker_memory_bytes": '"auto"',
        "cache_memory_bytes": '"auto"', "cache_disk_bytes": '"auto"', "cache_folders": "[]",
        "socket_mode": '"0660"',
    }  # fmt: skip
    listed = {row[0].strip("`"): row[1].strip("`") for row in table("configuration.md", "setting")}
    for name, field in FIELDS.items():
        shown, default = listed.pop(name), field.default
        if name != "cache_dir":
            assert shown == automatic.get(field.name, f'"{default}"' if isinstance(default, str) else str(default))
    assert listed == {}


def test_documents_name_every_argument_of_the_client() -> None:
    named = {span for row in table("client.md", "question") for span in re.findall(r"`(\w+)", row[1])}
    assert set(inspect.signature(prepclient.PrepClient).parameters) - {"loader_arguments"} <= named


def test_documents_name_every_op_and_source() -> None:
    on_batches = [op.__name__ for op in DEVICE_OPS]
    for members, pages in (
        (OPS, ("pipelines.md", "augmentation.md")), (SOURCES, ("sources.md",)), (on_batches, ("device-ops.md",)),
    ):  # fmt: skip
        named = {span.split("(")[0] for page in pages for span in spans((DOCS / page).read_text())}
        assert sorted(set(members) - named) == [], f"name it in docs/{' or docs/'.join(pages)}"
