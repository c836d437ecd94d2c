"""How fast do lines of text become rows of 2048 tokens, compared with `tokenizers` on as many cores?

A corpus of 10,000 lines (log-normal, median 150 words of a Zipf vocabulary of 30,000) and a byte-level BPE of 8,000
tokens trained on it. prepserver makes rows with `PackTokens`; two jobs that share the stream count the tokens that both
get. The rival calls `encode_batch_fast` with 1,000 lines at a time, on as many threads as prepserver has workers, cuts
at 2048 and fills rows one after the other: what a script does before training. Contenders take turns in each round,
after a warm-up; three rounds of windows of 3 s. Tokens of padding do not count. Counting tokens, which happens once for
each corpus and tokenizer, is shown by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from bench.harness.case import Case, Figures, Run, say
from bench.harness.rounds import Target, disturbed, target_sheet, values
from bench.harness.tables import Sheet, spread
from prepclient import PackTokens, PrepClient, TextLines, Tokenize

_LENGTH = 2048
_BATCH = 16
_AT_ONCE = 1000

Counts = AbstractContextManager[Iterator[int]]
"""Yields the number of tokens of each batch."""


def measure(run: Run) -> Figures:
    os.environ.update(TOKENIZERS_PARALLELISM="true", RAYON_NUM_THREADS=str(run.workers))
    corpus, tokenizer = _corpus(run.scratch, 2_000 if run.smoke else 10_000)
    source = PackTokens(TextLines(corpus), Tokenize(tokenizer), _LENGTH)
    contenders: dict[str, Callable[[], Counts]] = {
        "tokenizers": lambda: _rival(corpus, tokenizer),
        "prepserver": lambda: _prepserver(source, run.workers, jobs=1),
        "prepserver, two jobs": lambda: _prepserver(source, run.workers, jobs=2),
    }
    begun = time.monotonic()
    with PrepClient(source, [], batch_size=_BATCH, workers=run.workers) as client:
        rows = client.samples
    listed_s, tokens = time.monotonic() - begun, 0
    rounds = []
    for _ in range(run.rounds(3)):
        cells = []
        for name, each in contenders.items():
            say(name)
            with each() as counts:
                cells.append(
                    {"reader": name, "tokens_per_s": _rate(counts, *((0.3, 0.5) if run.smoke else (2.0, 3.0)))}
                )
        rounds.append(cells)
    with PrepClient(source, [], fields=["segments"], batch_size=_BATCH, workers=run.workers) as client:
        tokens = sum(int((segments > 0).sum()) for (segments,) in client)
    return {
        "workers": run.workers, "rows": rows, "filled": tokens / (rows * _LENGTH), "listed_s": listed_s,
        "listed_mb": corpus.stat().st_size / 1e6, "rounds": rounds,
    }  # fmt: skip


def _corpus(folder: Path, lines: int) -> tuple[Path, Path]:
    import tokenizers

    draw = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(draw.choice(letters, size)) for size in draw.integers(1, 11, 30_000)]
    ranks = np.minimum(draw.zipf(1.3, lines * 250), 30_000) - 1
    lengths = np.clip(draw.lognormal(5.0, 1.0, lines), 1, 20_000).astype(int)
    corpus, at = folder / "corpus.txt", 0
    with open(corpus, "w") as file:
        for length in lengths:
            chosen = np.take(ranks, np.arange(at, at + length), mode="wrap")
            file.write(" ".join(map(words.__getitem__, chosen.tolist())) + "\n")
            at += length
    made = tokenizers.ByteLevelBPETokenizer()
    with open(corpus) as file:
        made.train_from_iterator(itertools.islice(file, 4_000), vocab_size=8_000, show_progress=False)
    made.save(str(folder / "tokenizer.json"))
    return corpus, folder / "tokenizer.json"


@contextlib.contextmanager
def _prepserver(source: PackTokens, workers: int, jobs: int) -> Iterator[Iterator[int]]:
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                PrepClient(source, [], batch_size=_BATCH, shuffle=True, workers=workers, job=f"text {number}")
            )
            for number in range(jobs)
        ]

        def counted() -> Iterator[int]:
            while True:
                for batches in zip(*clients, strict=False):
                    for _, _, segments, _ in batches:
                        yield int((segments > 0).sum())

        yield counted()


@contextlib.contextmanager
def _rival(corpus: Path, tokenizer: Path) -> Iterator[Iterator[int]]:
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(tokenizer))
    made.no_padding()
    made.enable_truncation(_LENGTH)

    def counted() -> Iterator[int]:
        while True:
            with open(corpus) as file:
                while lines := list(itertools.islice(file, _AT_ONCE)):
                    found = [each.ids for each in made.encode_batch_fast(lines)]
                    flat = np.fromiter(itertools.chain.from_iterable(found), np.int64)
                    yield len(np.resize(flat, (-(-len(flat) // _LENGTH), _LENGTH)).ravel()[: len(flat)])

    yield counted()


def _rate(counts: Iterator[int], warm_s: float, window_s: float) -> float:
    """Tokens a second in a window after a warm-up."""
    ends = time.monotonic() + warm_s
    while time.monotonic() < ends:
        next(counts)
    begun, tokens = time.monotonic(), 0
    while (now := time.monotonic()) < begun + window_s:
        tokens += next(counts)
    return tokens / (now - begun)


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    sheet = Sheet("Text to rows of 2048 tokens", ("reader", "tokens/s"))
    for name in ("tokenizers", "prepserver", "prepserver, two jobs"):
        sheet.rows.append((name, spread(values(rounds, "tokens_per_s", {"reader": name}), ".0f")))
    one, two, rival = ({"reader": name} for name in ("prepserver", "prepserver, two jobs", "tokenizers"))
    targets = [
        Target("prepserver / tokenizers", "tokens_per_s", one, rival, 0.9),
        Target("two jobs / one", "tokens_per_s", two, one, 1.9),
    ]
    return [sheet, target_sheet("Ratios, median over rounds (min-max)", rounds, targets)]


def remarks(result: Figures) -> list[str]:
    return [
        f"{result['filled']:.1%} of the positions of {result['rows']} rows hold a token; counting them took "
        f"{result['listed_s']:.1f} s for {result['listed_mb']:.0f} MB, once.",
        *disturbed(result["rounds"]),
    ]


CASE = Case("Text", measure, sheets, remarks)
