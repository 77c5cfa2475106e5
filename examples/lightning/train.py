"""A Lightning script, as people have it, with one callback more: a small classifier on generated points, on CPUs."""

import argparse
import os
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from kuangchao_worker import report
from kuangchao_worker.integrations.lightning import ReportCallback


class Classifier(LightningModule):
    """Tells whether a point lies within a circle."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of a micro-batch."""
        points, inside = batch
        output = self.network(points)
        loss = nn.functional.cross_entropy(output, inside)
        self.log("train/loss", loss)
        self.log("train/accuracy", (output.argmax(1) == inside).float().mean())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def points() -> TensorDataset:
    """2048 points and whether they lie in a circle that holds about half of them."""
    drawn = torch.randn(2048, 2, generator=torch.Generator().manual_seed(7))
    return TensorDataset(drawn, (drawn.square().sum(1) < 1.4).long())


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    output = report.checkpoint_directory() or Path("lightning-output")
    seed_everything(7)
    saver = ModelCheckpoint(output, save_last=True, every_n_train_steps=10)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        # the processes are there already: so many in this pod, in so many pods
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        max_steps=steps,
        log_every_n_steps=5,
        callbacks=[ReportCallback(), saver],
        logger=False,
        enable_progress_bar=False,
    )
    last = output / "last.ckpt"
    resumed = str(last) if last.exists() else None
    trainer.fit(Classifier(), DataLoader(points(), batch_size=64, shuffle=True), ckpt_path=resumed)


if __name__ == "__main__":
    main()
