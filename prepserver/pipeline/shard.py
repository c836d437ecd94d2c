"""One shard of each pass: which places a machine takes, and how its positions relate to those of all samples.

Place g of a pass goes to shard ``g % count`` as that shard's place ``g // count``, so every pass of every order is
dealt anew to all machines. Each shard counts ``ceil(n / count)`` positions in a pass, so one number says where all
shards stand, although they do not communicate. If `count` does not divide n, the last position of a pass holds no
sample in some shards.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SHARDS = 1 << 16


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the samples of each pass."""

    count: int = 1  # shards in all, 1 or more
    index: int = 0  # this one, 0 <= index < count

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_SHARDS:
            raise ValueError(f"num_shards = {self.count}: a whole number in [1, {MAX_SHARDS}]")
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard_index = {self.index} is not in [0, num_shards = {self.count})")

    def positions(self, n: int) -> int:
        """Return the positions of a pass over `n` samples, the same in every shard."""
        return -(-n // self.count)

    def is_uneven(self, n: int) -> bool:
        """Say whether the last position of a pass holds no sample in some shards."""
        return n % self.count != 0

    def is_short(self, n: int) -> bool:
        """Say whether the last position of a pass holds no sample in this shard."""
        return self.is_uneven(n) and self.index >= n % self.count

    def to_all(self, position: int, n: int) -> int:
        """Return the position among all samples when each shard is at its own `position`."""
        pass_, place = divmod(position, self.positions(n))
        return pass_ * n + place * self.count

    def from_all(self, epoch: int, epoch_start: int, position: int, n: int) -> tuple[int, int]:
        """Convert (epoch_start, position) among all samples, in epoch number `epoch`, to those of each shard.

        Raises:
            ValueError: They have no counterpart: shards begin their epochs with a pass, and all stand at one number.
        """
        if self.count == 1:
            return epoch_start, position
        pass_, inside = divmod(epoch_start, n)
        if inside and position == epoch_start:
            # No shard can be there; each shard that begins this epoch computes the same pass from its number.
            pass_, inside = epoch, 0
        own, rest = divmod(position - epoch_start, self.count)
        if inside:
            raise ValueError(
                f"the epoch began {inside} samples after a pass of all {n} began, and shards begin theirs with a pass: "
                f"num_shards = {self.count} can continue only at the start of an epoch"
            )
        if rest:
            raise ValueError(
                f"{position - epoch_start} samples of the epoch were taken, which num_shards = {self.count} does not "
                "divide: continue with as many shards as before, or at the start of an epoch"
            )
        start = pass_ * self.positions(n)
        return start, start + own


WHOLE = Shard()  # all samples
