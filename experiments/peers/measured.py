"""What the scripts of this folder share: the sizes of the works, the clock and the line.

Each script runs in the environment of its library, so this needs Python 3.11 on Linux alone.
A round's clients train by SGD at rate 0.1, in batches of 64, and their models are averaged.
Nothing is evaluated in a round.

    w1  a perceptron of 486 weights, 6-16-16-6: 5 of 48 clients, 50 steps each
    w2  LeNet of 61,706 weights, 28 x 28 x 1: 10 of 20 clients with 500 images each, one epoch
    w3  the perceptron of w1: 10 of 100,000 clients with 10 examples each, 50 steps each

A script prints one line of JSON: the work, the library and its version, the number of weights,
the seconds from the start of the process until the data and the federation were made, and to
the end of its first round, the median seconds of a later round and how many were timed, and the
largest resident size in MiB.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

BATCH, RATE = 64, 0.1


class Work(NamedTuple):
    """The sizes of a round."""

    clients: int
    cohort: int  # clients in a round
    steps: int  # of a client
    examples: int  # of a client, for training
    rounds: int  # timed by default, after the first


WORKS = {
    "w1": Work(48, 5, 50, 100, 50),
    "w2": Work(20, 10, 8, 500, 8),
    "w3": Work(100_000, 10, 50, 10, 10),
}


def parser() -> argparse.ArgumentParser:
    """The flags of all scripts."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--work", choices=WORKS, required=True)
    flags.add_argument("--rounds", type=int, help="timed rounds, after the first")
    flags.add_argument("--clients", type=int, help="clients, instead of those of the work")
    return flags


class Rounds:
    """The clock of the rounds of this process.

    Args:
      flags: from `parser`.
    """

    def __init__(self, flags: argparse.Namespace):
        self.name, self.work = flags.work, WORKS[flags.work]
        self.timed = self.work.rounds if flags.rounds is None else flags.rounds
        if flags.clients is not None:
            self.work = self.work._replace(clients=flags.clients)
        self.made, self.first, self.seconds, self.begun = 0.0, 0.0, [], 0.0

    def ready(self) -> None:
        """When the data and the federation are made."""
        self.made = since_start()

    def begin(self) -> None:
        """At the start of a round."""
        self.begun = time.perf_counter()

    def end(self) -> None:
        """At the end of a round, when its model is computed."""
        if self.first:
            self.seconds.append(time.perf_counter() - self.begun)
        else:
            self.first = since_start()

    def play(
        self,
        play_round: Callable[[], None],
        at_once: int = 1,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Calls a function that plays a round and waits for its model, for each round.

        Args:
          at_once: rounds that a call plays; the time of a round is that share of its time.
          then: called once, after the first call.
        """
        for played in range(1 + self.timed):
            self.begin()
            play_round()
            self.end()
            if not played:
                then()
        self.seconds = [seconds / at_once for seconds in self.seconds]

    def show(self, library: str, parameters: int) -> None:
        """Prints the line.

        Args:
          library: the name of its package on the package index.
          parameters: weights of the model that was trained.
        """
        line = {
            "work": self.name,
            "library": library,
            "version": metadata.version(library),
            "parameters": parameters,
            "ready_s": self.made,
            "first_round_s": self.first,
            "round_s": statistics.median(self.seconds),
            "rounds": len(self.seconds),
            "peak_mib": peak_mib(),
        }
        print(json.dumps(line))


def since_start() -> float:
    """Seconds since the start of this process, to 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22, in ticks since boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def peak_mib() -> float:
    """The largest resident size of this process.

    That of `resource.getrusage` is no less than the size of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) / 1024
