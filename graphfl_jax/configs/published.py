"""Published scores of the Panacea paper: mean and spread, as printed, in % or 1e-3.

panacea_2, panacea_3: Panacea, IEEE TDSC 2025, Tables II (clients that train) and III (new
clients). panacea_4: its ablation, Table IV, for the data sets that are also in Table 1 of the
anonymous ICLR 2024 submission of that name. The row pFedHN of that submission is Panacea-MLP
here: the journal prints its numbers under that name, and other numbers for pFedHN. Those of
Panacea and of Panacea-GN are of the variants panacea-paper and panacea-paper-gn alone, whose
method is the papers'. The papers
call the spread a standard deviation over runs, but values as large as theirs can only be over
clients. Their columns of traffic fit no single normalisation of the data, so they cannot be
compared with other results (docs/developer/decisions.md). An empty row was not published.
"""

import json
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from graphfl_jax.configs.values import values_of


class Score(NamedTuple):
    """A published mean and its spread."""

    mean: float
    spread: float


# table -> variant -> data set -> score
PUBLISHED = {
    table: {
        variant: {dataset: Score(*score) for dataset, score in scores.items()}
        for variant, scores in rows.items()
    }
    for table, rows in json.loads(Path(__file__).with_suffix(".json").read_text()).items()
}
# Fields of the papers' protocol. A method or data set without a field has nothing to compare.
PROTOCOL = {
    "rounds": 800,
    "cohort_size": 5,
    "batch_size": 64,
    "local_steps": 50,
    "algorithm.server_steps": 10,
    "data.val_fraction": 0.0,
    "data.protocol": "years",
    "data.graph": "own",
    "data.scale": "none",
    "precision": "float32",
}


def published_score(
    config: ConfigDict, variant: str, dataset: dict, table: str = "panacea_2"
) -> Score | None:
    """The published score of a variant if the run follows the papers' protocol, else None.

    The papers' clean runs have neither an attack nor a defence.

    Args:
      config: configuration of the run.
      variant: `base.variant_of` the configuration.
      dataset: ``source`` and ``extent``, as in results.json. Runs on simulated data or on a
        part of a data set are not comparable.
      table: a key of `PUBLISHED`, or the name of another table.
    """
    values, _ = values_of(config)
    expected = dict(PROTOCOL)
    if values["algorithm.name"] == "pfedhn":
        expected["algorithm.server_steps"] = 1  # by its definition
    comparable = (
        dataset["source"] != "simulated"
        and not dataset["extent"]
        and not any(values[name] for name in ("init_from", "attack.name", "defence.name"))
        and not values["new_clients.clients"]
        and values["new_clients.fraction"] == (0.2 if table == "panacea_3" else 0.0)
        and all(values.get(name, value) == value for name, value in expected.items())
    )
    if not comparable:
        return None
    return PUBLISHED.get(table, {}).get(variant, {}).get(values["data.name"])
