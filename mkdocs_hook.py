"""Builds the site from the documents in the repository; `make docs` runs it.

Documents link to each other as files, so that they can also be read in a checkout. This hook adds the documents outside
``docs/``, redirects links to their pages, lists the decisions and the ops and sources of the API reference, and rejects
a page that would load anything from another host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parent
ELSEWHERE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "bench/RESULTS.md": "results.md",
    "bench/peers.svg": "peers.svg",
}
"""Documents outside docs/, and their paths in the site."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_MEMBERS = re.compile(r"^<!-- members of (\S+) -->$", re.MULTILINE)
_FOREIGN = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?https?:[^>]*>")


def on_config(config: Any) -> Any:
    """Lists the decisions: adding one is adding a file."""
    decisions = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    config.nav.append({"Decisions": ["decisions/README.md", *(f"decisions/{name}" for name in decisions)]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the documents outside docs/."""
    for path, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Redirects links between files to pages, and lists members where a page has a marker."""
    place = page.file.src_uri
    path = next((path for path, at in ELSEWHERE.items() if at == place), f"docs/{place}")

    def pointed(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if not target or ":" in target:
            return link[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if file in ELSEWHERE or file.startswith("docs/"):
            there = ELSEWHERE.get(file, file.removeprefix("docs/"))
            return f"{image}[{text}]({posixpath.relpath(there, posixpath.dirname(place))}{anchor})"
        return text  # source code, which is not part of the site

    return _MEMBERS.sub(_members, _LINK.sub(pointed, markdown))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Checks that the page loads nothing from another host.

    Raises:
        PluginError: It loads a font, a script or an image from there.
    """
    if foreign := _FOREIGN.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {foreign[0]}")
    return output


def _members(marker: re.Match[str]) -> str:
    """One entry of the API reference for each public class of a module, or of the modules of a package."""
    path = ROOT.joinpath(*marker[1].split("."))
    modules = {f"{marker[1]}.{file.stem}": file for file in sorted(path.glob("[!_]*.py"))}
    found = [
        f"::: {module}.{name}\n    options:\n      members: false"
        for module, file in (modules or {marker[1]: path.with_suffix(".py")}).items()
        for name in re.findall(r"^class ([A-Z]\w*)", file.read_text(), re.MULTILINE)
    ]
    return "\n\n".join(found)
