"""Tables of uploads that are compressed, and of those that are private."""

import numpy as np

from experiments.paper import columns
from experiments.paper.columns import Column, Row, TableText, number_text, spread_text
from experiments.paper.configurations import Cell
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import count_text
from graphfl_jax.evaluation import POINTS

COMPRESSED = ("fedavg", "ditto", "fedrep", "panacea")
PRIVATE = ("fedavg", "ditto", "fedrep", "panacea", "local")


def _quantised(bits):
    return {"compression.name": "quantise", "compression.bits": bits}


def _part(name, share, feedback=False):
    return {
        "compression.name": name,
        "hparams.compression_share": share,
        "compression.feedback": feedback,
    }


SETTINGS = {
    "whole": {},
    "8 bits": _quantised(8),
    "4 bits": _quantised(4),
    "2 bits": _quantised(2),
    "1 bit": _quantised(1),
    "largest 10 %": _part("top_k", 0.1),
    "largest 2 %": _part("top_k", 0.02),
    "largest 2 %, feedback": _part("top_k", 0.02, feedback=True),
    "random 10 %": _part("random_k", 0.1),
    "signs": {"compression.name": "sign"},
    "signs, feedback": {"compression.name": "sign", "compression.feedback": True},
    "sketch": {
        "compression.name": "sketch",
        "compression.rows": 3,
        "compression.columns": 80,
    },
}
COMPRESSION_CELLS = tuple(Cell("tpt48", name, changes) for name, changes in SETTINGS.items())

# The noise is that of a deployment with 1,000 of 100,000 clients in a round; the clients who
# train here are those of the data set.
DEPLOYED = {
    "privacy.name": "central",
    "hparams.privacy_cohort": 1000.0,
    "hparams.privacy_population": 100_000.0,
}
# A small network, since the noise of privacy grows with the number of parameters.
FASHION = {
    "model.name": "mlp",
    "model.hidden": (64,),
    "data.clients": 100,
    "data.partition": "pathological",
    "data.val_fraction": 0.0,
    "batch_size": 32,
    "local_steps": 8,
    "rounds": 100,
    "eval_every": 100,
    "cohort": "poisson",
    "cohort_size": 20,
}
TPT48 = {"cohort": "poisson", "cohort_size": 12, "eval_every": 800}


def _private_cells(dataset, changes, clip):
    """A cell for each noise multiplier; 0 is without privacy."""
    cells = []
    for noise in (0.0, 0.5, 1.0, 2.0, 4.0):
        central = DEPLOYED | {"hparams.privacy_noise": noise, "hparams.privacy_clip": clip}
        by_client = {
            "privacy.name": "local",
            "hparams.privacy_noise": noise,
            "hparams.privacy_clip": clip,
        }
        of_methods = dict.fromkeys(("fedavg", "ditto", "fedrep"), central)
        of_methods |= {"panacea": by_client}
        name = f"z {noise:g}" if noise else "no privacy"
        cells.append(Cell(dataset, name, changes, of_methods=of_methods if noise else {}))
    return tuple(cells)


PRIVACY_CELLS = (
    *_private_cells("tpt48", TPT48, 0.3),
    *_private_cells("fashion_mnist", FASHION, 1.0),
)


def table_row(cell: Cell, config, runs: list[dict]) -> Row:
    """A row, as `tables.Table.row`."""
    row = columns.common_row(config, runs)
    private = runs[0]["privacy"]
    row |= {
        "setting": cell.setting,
        "part": _part_of(config),
        "higher_is_better": runs[0]["higher_is_better"],
        "up": float(np.mean([run["communication"]["up_bytes"] for run in runs])) / 1e3,
        "privacy": private and private["name"],
        "epsilon": private and float(np.mean([run["privacy"]["epsilon"] for run in runs])),
        "scores": None,
    }
    if row["diverged"]:
        return row
    scale = UNITS[row["metric"]][0]
    finals = [run["scores"]["final"] for run in runs]
    row["scores"] = {
        point: columns.seed_statistics([final[point] for final in finals], scale)
        for point in POINTS
    }
    return row


def _part_of(config):
    """The privacy or the compressor of a configuration, empty without one."""
    if config.privacy.name:
        return f"{config.privacy.name} privacy"
    feedback = ", feedback" if config.compression.get("feedback") else ""
    return config.compression.name + feedback


def text_of(title: str, introduction: str, *further: Column) -> TableText:
    """The text of a table, with further columns at its end."""
    return TableText(
        columns=(
            columns.DATA,
            columns.SETTING,
            columns.METHOD,
            Column("privacy", lambda row: row["privacy"] or "", optional=True),
            Column("epsilon", lambda row: number_text(row["epsilon"], 1), optional=True),
            *map(columns.mean_column, POINTS),
            Column("sd\nseeds", lambda row: spread_text(row["scores"]["P"]["seeds"])),
            Column("kB up", lambda row: number_text(row["up"], 3)),
            *columns.COST,
            *further,
        ),
        title=lambda row: f"{title} on {row['data']}, {row['setting']}, {row['unit']}",
        introduction=lambda rows: [
            f"{introduction} Test scores of {count_text(rows[0]['seeds'], 'seed')}; "
            f"{columns.metrics_text(rows)}. {columns.SPREAD} "
            f"{columns.COSTS} *kB up* are the kilobytes of an upload.\n"
        ],
        notes=columns.simulated_notes,
    )


COMPRESSION_TEXT = text_of(
    "compression",
    "Uploads are compressed as `compression.name` states; the rates are those of whole ones.",
)
PRIVACY_TEXT = text_of(
    "privacy",
    "Noise and *epsilon* of `central` are of a deployment with 1,000 of 100,000 clients in a "
    "round, at delta 1e-5; those of `local` are of the clients that are here. The rates are "
    "those without privacy. `local` as a method sends nothing.",
)
