"""Services that show the progress of runs: TensorBoard and Weights & Biases."""

import importlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphfl_jax.configs.fields import SPLITS

SUMMARIES = ("mean", "std_clients", "worst_decile", "jain")  # of scores, that are sent


class TensorBoard:
    """Writes event files into the folder tensorboard of a run."""

    FOLDER = "tensorboard"

    @staticmethod
    def check(text: str) -> None:
        """It needs no account."""

    def __init__(self, out: Path, fields: Mapping[str, Any]):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(str(out / self.FOLDER))

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds an evaluation, as metrics.jsonl has it."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row)]
        summary = Summary(value=values)
        self.writer.add_event(Event(wall_time=time.time(), step=row["round"], summary=summary))
        self.writer.flush()

    def close(self) -> None:
        """Ends the writing."""
        self.writer.close()


class WeightsAndBiases:
    """Sends a run to Weights & Biases, or with WANDB_MODE=offline into the folder wandb."""

    FOLDER = "wandb"

    @staticmethod
    def check(text: str) -> None:
        """Checks that there is an account to send to, unless it writes into a folder.

        Raises:
          ValueError: there is none. It begins with `text`, the flag.
        """
        import wandb

        mode = wandb.setup(settings=wandb.Settings(silent=True)).settings.mode
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            raise ValueError(
                f"{text} has no account; run wandb login, or set WANDB_MODE=offline in the "
                f"environment"
            )

    def __init__(self, out: Path, fields: Mapping[str, Any]):
        import wandb

        settings = wandb.Settings(silent=True)
        try:
            self.run = wandb.init(
                project="graphfl",
                name=out.name,
                dir=str(out),
                config=dict(fields),
                settings=settings,
            )
        except wandb.Error as error:
            why = " ".join(str(error).split())
            raise ValueError(
                f"wandb cannot begin a run ({why}); run wandb login, or set WANDB_MODE=offline"
            ) from error

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds an evaluation, as metrics.jsonl has it."""
        self.run.log(dict(scalars(row)), step=row["round"])

    def close(self) -> None:
        """Ends the run there."""
        self.run.finish()


TRACKERS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def check_trackers(flag: str, names: list[str]) -> None:
    """Checks that services are known, their packages installed, and their accounts known.

    Raises:
      ValueError: one is not.
    """
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"{flag}={name} is unknown; choose from {', '.join(TRACKERS)}")
        try:
            importlib.import_module(name)
        except ImportError:
            raise ValueError(
                f"{flag}={name} needs a package that is not installed; run pip install {name}"
            ) from None
        TRACKERS[name].check(f"{flag}={name}")


def scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of an evaluation, by names.

    Examples are ``train/loss``, ``test/P/mean`` and ``metrics/P/auc``. A number that is null is
    left out.
    """
    numbers = {f"train/{name}": value for name, value in row["train"].items()}
    for point, metrics in row.get("metrics", {}).items():
        for name, values in metrics.items():
            numbers[f"metrics/{point}/{name}"] = values["mean"]
    for split in SPLITS:
        for point, scores in row.get(split, {}).items():
            numbers |= {f"{split}/{point}/{name}": scores[name] for name in SUMMARIES}
    return ((name, value) for name, value in numbers.items() if value is not None)
