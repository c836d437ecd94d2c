"""What `PrepClient` does with a session when it hands out a batch."""

from __future__ import annotations

from prepclient.session import Bad, Handed, Session
from prepclient.steps import BatchMaker, Step
from prepserver.pipeline.batches import Batch


def hand_out(session: Session) -> tuple[Batch, list[Bad]]:
    """The oldest staged batch goes to the training loop, with its replaced rows."""
    batch, bad, line = session.offer()
    session.handed = Handed(line, session.handed.totals)
    return batch, bad


def next_step(maker: BatchMaker, session: Session) -> Step:
    """The next batch of a maker, handed out."""
    made = maker.step(60)
    session.handed = Handed(made.line, session.handed.totals)
    return made
