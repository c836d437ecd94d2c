"""The last step: writes the index of all records, with labels and names from the source; it completes the dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prepserver.pack.shards import Table
from prepserver.source import Source
from prepserver.source.container import write_container
from prepserver.source.files import FileTable
from prepserver.source.readers.packed import INDEX_KEY, index_name


def write_index(
    folder: Path, source: Source, table: Table, sizes: Sequence[int], held: Mapping[str, Any], notes: Mapping[str, Any]
) -> Path:
    """Write the index of a dataset and return its path.

    `table` and the `sizes` of the shards say where the records are, `held`, of `columns_meta`, what they hold; people
    may read in `notes` how it was packed.
    """
    names = FileTable()
    for label, folder_name, name in _listed(source, table):
        names.add(folder_name, name, label)
    classes = source.classes()
    places = (table.shards, table.offsets, table.lengths, table.crcs)
    content_digest = names.digest(classes)
    digest = hashlib.sha256(content_digest.encode())
    for column in places:
        digest.update(column)
    pack_digest = digest.hexdigest()
    meta = {
        "key": INDEX_KEY,
        "n": len(names),
        "classes": classes,
        "num_classes": len(classes) or names.max_label + 1,
        "content_digest": content_digest,
        "pack_digest": pack_digest,
        "shards": list(sizes),
        **held,
        "packed": dict(notes),
    }
    path = folder / index_name(pack_digest)
    write_container(path, meta, names.sections(*places))
    # Containers are private, as files of a user's cache; a dataset has the mode of its owner's umask.
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)
    return path


def _listed(source: Source, table: Table) -> Iterator[tuple[int, bytes, bytes]]:
    for sample in table.samples:
        folder, slash, name = os.fsencode(source.name(sample)).rpartition(b"/")
        yield source.label(sample), folder + slash, name
