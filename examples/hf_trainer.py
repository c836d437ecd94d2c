"""The Trainer of Hugging Face's transformers: it trains on a PrepClient's batches, and resumes in mid-epoch.

    pip install transformers accelerate; python examples/hf_trainer.py

`Batches` names the columns as the model's arguments; as a callback, it keeps the client's place in checkpoints.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from torch.utils.data import DataLoader, IterableDataset
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments
from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerState

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages


class Batches(IterableDataset, TrainerCallback, ExportableState):
    """The batches of a client; the length tells the Trainer how many steps an epoch has."""

    def __init__(self, train: PrepClient) -> None:
        self.train = train

    def __len__(self) -> int:
        return len(self.train)

    def __iter__(self) -> Iterator[dict[str, object]]:
        batches = iter(self.train)
        yield from [{}] * (len(self) - len(batches))  # in place of those that the Trainer skips when it resumes
        yield from ({"pixel_values": images, "labels": labels} for images, labels in batches)

    def state(self) -> dict[str, object]:
        """What a checkpoint holds."""
        return {"args": {}, "attributes": self.train.state_dict()}

    def on_train_begin(self, _arguments: object, state: TrainerState, _control: object, **_others: object) -> None:
        """If the Trainer resumes from a checkpoint, moves the client to the place in it."""
        if state.global_step:
            self.train.load_state_dict(state.stateful_callbacks["Batches"]["attributes"])


def main() -> None:
    """Two epochs; then the last four steps once more, from a checkpoint in the second epoch."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, num_train_epochs=2, report_to=[], save_steps=10, disable_tqdm=True)
        train = PrepClient(
            SyntheticImages(120, size=64), [RandomResizedCrop(32)], batch_size=16, shuffle=True, drop_last=True,
            device=arguments.device, normalize=((0.5,) * 3, (0.25,) * 3), job="trainer", workers=2)  # fmt: skip
        model = ResNetForImageClassification(ResNetConfig(hidden_sizes=[8], depths=[1], num_labels=1000))
        trainer = Trainer(model, arguments, callbacks=[batches := Batches(train)])
        trainer.get_train_dataloader = lambda: DataLoader(batches, batch_size=None)
        with train:
            for checkpoint in (None, f"{folder}/checkpoint-10"):
                print(trainer.train(checkpoint).global_step, "steps,", train.stats()["batches"], "batches read so far")


if __name__ == "__main__":
    main()
