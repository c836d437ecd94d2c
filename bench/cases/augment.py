"""What does heavy augmentation cost, of images or with boxes, in prepserver and in torchvision?

Everybody reads the same photos and does the same work: decode, RandomResizedCrop to 224, horizontal flip, RandAugment
(2 changes of strength 9), RandomErasing (p=0.25), shuffled uint8 batches of 64. One job, the same number of workers.

- prepserver: a daemon, and a `PrepClient` with its defaults.
- torchvision: a DataLoader with torchvision v2 on uint8 tensors, decoded by Pillow as in torchvision's ImageFolder, and
  by simplejpeg.
- prepserver without the two ops, to see what they cost.
- Both with boxes instead: the same photos with 1 to 14 boxes, RandomIoUCrop, horizontal flip, Resize to 640 x 640, and
  boxes without area removed; batches of 16.

The cells take turns. A second after the first batch, a window of 4 s is measured, as in `compare`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bench.harness.case import Case, Figures, Run, say
from bench.harness.measure import run_cell
from bench.harness.photos import write_boxes
from bench.harness.rounds import Target, target_sheet, values
from bench.harness.server import running_server
from bench.harness.tables import Sheet, spread

_CELLS: dict[str, dict[str, Any]] = {
    "prepserver": {"contender": "prepserver", "augments": True},
    "torchvision, Pillow": {"contender": "torch_vision", "decoder": "pillow"},
    "torchvision, simplejpeg": {"contender": "torch_vision", "decoder": "simplejpeg"},
    "prepserver, crop and flip": {"contender": "prepserver"},
    "prepserver, boxes": {"contender": "prepserver", "size": 640},
    "torchvision, Pillow, boxes": {"contender": "torch_boxes", "decoder": "pillow", "size": 640},
    "torchvision, simplejpeg, boxes": {"contender": "torch_boxes", "decoder": "simplejpeg", "size": 640},
}
_TARGETS = [
    Target(f"images/s: {ours} / {other}", "images_per_s", {"cell": ours}, {"cell": other}, bound)
    for ours, other, bound in (
        ("prepserver", "torchvision, Pillow", 2.0),
        ("prepserver", "torchvision, simplejpeg", 2.0),
        ("prepserver", "prepserver, crop and flip", None),
        ("prepserver, boxes", "torchvision, Pillow, boxes", 2.0),
        ("prepserver, boxes", "torchvision, simplejpeg, boxes", 2.0),
    )
]


def measure(run: Run) -> Figures:
    samples = 800 if run.smoke else 8000
    listed, boxes = run.listed(samples), write_boxes(run.photos, samples, run.scratch / "boxes.json")
    warm_s, window_s = (0.5, 1.0) if run.smoke else (1.0, 4.0)

    def cell(name: str) -> dict[str, Any]:
        config = dict(_CELLS[name])
        if "size" in config:
            config |= {"boxes": str(boxes), "batch": 16}
        with contextlib.ExitStack() as stack:
            is_own = config["contender"] == "prepserver"
            server = stack.enter_context(running_server(run.scratch, run.workers)) if is_own else None
            found = run_cell([run.job(config.pop("contender"), listed, **config)], warm_s, window_s, server)
        say(f"{name:30} {found['images_per_s']:.0f} images/s")
        return {"cell": name, **found}

    say("warming up: the daemon lists the photos")
    for name in ("prepserver", "prepserver, boxes"):
        cell(name)
    return {"workers": run.workers, "rounds": [[cell(name) for name in _CELLS] for _ in range(run.rounds(3))]}


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    steady = Sheet("RandAugment and RandomErasing, or boxes; 1 job", ("contender", "images/s", "CPU s per 1000"))
    for name in _CELLS:
        rates, cpu = (values(rounds, figure, {"cell": name}) for figure in ("images_per_s", "cpu_s_per_1000"))
        steady.rows.append((name, spread(rates), spread(cpu, ".2f")))
    return [steady, target_sheet("Ratios (median over rounds, min-max)", rounds, _TARGETS)]


CASE = Case("Heavy augmentation", measure, sheets)
