"""Rows that mix several samples: reads the partners, passes over bad ones, and makes the row from all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prepserver.source import SampleError
from prepserver.transform import BadSample, SampleKey, is_shortage, make_rows
from prepserver.transform.mixing import Mixer
from prepserver.transform.rows import NextTarget
from prepserver.transform.stage import Mix, Part
from prepserver.worker.caching import Caching, Ready
from prepserver.worker.streams import Lane, Stream

TRIES = 9
"""How many samples are tried for a partner: itself and the next ones by index. The first good one is taken."""


class Partners:
    """The other samples of the rows of some lanes."""

    def __init__(self, stream: Stream, lanes: Sequence[Lane], caches: Caching) -> None:
        self._stream, self._lanes, self._caches = stream, lanes, caches

    def make(
        self, place: int, ready: Ready, key: SampleKey, position: int, mark: Callable[[int, int], None],
        step: NextTarget,
    ) -> None:  # fmt: skip
        """Makes the row of `position` in the lane at `place` from its own sample, which is `ready`, and its partners.

        `mark` (see `fill`) is called before each partner is read, and again for the row's own sample.

        Raises:
            BadSample: The row's own sample is bad, or a partner and all that could replace it are.
        """
        for mixer in self._lanes[place].mixers:
            mix = mixer.parts.mix(self._stream.order.samples, key)
            parts = [_part(mixer, ready, key, 0, mix, step)]
            for number, partner in enumerate(mix.partners, 1):
                parts.append(self._partner(mixer, place, partner, key, number, mix, lambda i: mark(position, i), step))
            mark(position, key.index)
            record = {**ready.record, **mixer.parts.joined(parts, mix)}
            rows = [self._lanes[place].rows.row(field.name, position) for field in mixer.tail.fields]
            make_rows(record, key, [(mixer.tail, rows)], step)

    def _partner(
        self, mixer: Mixer, place: int, partner: int, key: SampleKey, number: int, mix: Mix, mark: Callable[[int], Any],
        step: NextTarget,
    ) -> Part:  # fmt: skip
        reason = ""
        for candidate in range(partner, partner + TRIES):
            index = candidate % self._stream.order.samples
            mark(index)  # ORDER: it may quarantine the sample
            if index in self._stream.quarantined or index in self._lanes[place].quarantined:
                continue
            try:
                ready = self._caches.ready(index, place)
                return _part(mixer, ready, SampleKey(key.seed, key.pass_, index), number, mix, step)
            except SampleError as error:
                reason = error.reason
            except Exception as error:
                if is_shortage(error):
                    raise
                reason = str(error)  # it is reported where the partner has its own row
        reason = f"none of {TRIES} samples from {partner} on can be its partner: {reason or 'quarantined'}"
        raise BadSample(reason, {0: reason})


def _part(mixer: Mixer, ready: Ready, key: SampleKey, number: int, mix: Mix, step: NextTarget) -> Part:
    maker = mixer.headed if ready.is_tail else mixer.parts
    return maker.part(ready.record, key, number, mix, step)
