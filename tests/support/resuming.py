"""What each rank of `test_resuming` runs: a framework trains for two epochs, and the first launch dies in the second.

``resuming.py FOLDER FRAMEWORK``: each step's number and the samples it trained on go to a file of this rank.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from prepclient import CenterCrop, PrepClient, SyntheticImages

SAMPLES = 120
BATCH_SIZE = 8
EPOCHS = 2
ACCUMULATED = 2  # does not divide the batches of an epoch of one rank

EXAMPLES = Path(__file__).parents[2] / "examples"
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def steps_of(ranks: int) -> int:
    """Steps of an epoch."""
    return math.ceil(math.ceil(SAMPLES / BATCH_SIZE / ranks) / ACCUMULATED)


SAVED = steps_of(RANKS) + 1
DIES = SAVED + 1


class Model(nn.Module):
    """Takes the samples' indices in the place of labels."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, 1)
        self.file = folder / f"read-{'second' if (folder / 'died').exists() else 'first'}-{RANK}"
        self.read: list[int] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
        self.read += labels.tolist()
        return (self.linear(pixel_values.flatten(1)).mean(),)

    def end_step(self, step: int) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps([step, self.read]) + "\n")
        self.read = []
        if step == DIES and "first" in self.file.name:
            (self.file.parent / "died").touch()
            os._exit(0)


def transformers(train: PrepClient, model: Model, folder: Path) -> None:
    """The Trainer, with the class of the recipe."""
    from torch.utils.data import DataLoader
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Ends(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, _arguments: Any, state: Any, _control: Any, **_others: Any) -> None:
            if model.read:
                model.end_step(state.global_step)

        on_train_end = on_step_begin

    arguments = TrainingArguments(
        str(folder), num_train_epochs=EPOCHS, gradient_accumulation_steps=ACCUMULATED, save_steps=SAVED, use_cpu=True,
        report_to=[], disable_tqdm=True,
    )  # fmt: skip
    batches = runpy.run_path(str(EXAMPLES / "hf_trainer.py"))["Batches"](train)
    trainer = Trainer(model, arguments, callbacks=[batches, Ends()])
    trainer.get_train_dataloader = lambda: DataLoader(batches, batch_size=None)
    checkpoint = folder / f"checkpoint-{SAVED}"
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint.exists() else None)


def lightning(train: PrepClient, model: Model, folder: Path) -> None:
    """Lightning's Trainer."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.step = model, 0

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _number: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(*batch)[0]
            return loss

        def on_train_batch_start(self, *_: Any) -> None:
            self.end_step()

        on_train_end = on_train_batch_start

        def end_step(self) -> None:
            if model.read and self.global_step != self.step:
                model.end_step(self.global_step)
            self.step = self.global_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saving = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=SAVED)
    checkpoint = folder / f"step={SAVED}.ckpt"
    place = lightning.Callback()
    place.state_dict, place.load_state_dict = train.state_dict, train.load_state_dict
    lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=RANKS, accumulate_grad_batches=ACCUMULATED,
        callbacks=[saving, place], logger=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Module(), train, ckpt_path=str(checkpoint) if checkpoint.exists() else None)  # fmt: skip


def accelerate(train: PrepClient, model: Model, folder: Path) -> None:
    """Accelerate's loop. It does not step at an epoch's end by itself: see `docs/migrating.md`."""
    from accelerate import Accelerator

    accelerator, checkpoint, step = Accelerator(cpu=True), folder / "checkpoint", 0
    module, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.register_for_checkpointing(train)
    if resumes := checkpoint.exists():
        accelerator.load_state(str(checkpoint))
        step = SAVED
    for _ in range(train.epoch, EPOCHS):
        for number, batch in enumerate(batches := iter(train), 1):
            accelerator.backward(module(*batch)[0])
            if number % ACCUMULATED == 0 or not len(batches):  # type: ignore[arg-type]
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step == SAVED and not resumes:
                    accelerator.save_state(str(checkpoint))
                model.end_step(step)


LOOPS = {"transformers": transformers, "lightning": lightning, "accelerate": accelerate}


def main(folder: Path, framework: str) -> None:
    if RANKS > 1:
        dist.init_process_group("gloo")
    with PrepClient(
        SyntheticImages(SAMPLES, size=16), [CenterCrop(8)], batch_size=BATCH_SIZE, shuffle=True, seed=3,
        fields=("image", "index"), dtype=torch.float32, job="resuming",
    ) as train:  # fmt: skip
        LOOPS[framework](train, Model(folder), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
