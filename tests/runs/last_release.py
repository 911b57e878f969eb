"""Turns the files of a run into those that the last release would have written.

The last release stored every field of every method, under names that have changed since.
"""

import hashlib
import json
import re
from pathlib import Path

from graphfl_jax.configs.renamed import FIELDS as RENAMED_FIELDS
from graphfl_jax.configs.renamed import VALUES as RENAMED_VALUES
from graphfl_jax.configs.values import flat

# Every field of the last release, with its default.
DEFAULTS = {
    "seed": 0,
    "rounds": 800,
    "eval_every": 20,
    "checkpoint_every": 100,
    "cohort_size": 5,
    "batch_size": 64,
    "local_steps": 50,
    "server_steps": 10,
    "eval_block": 512,
    "eval_clients": 0,
    "data.name": "tpt48",
    "data.source": "auto",
    "data.path": "",
    "data.root": "",
    "data.download": True,
    "data.protocol": "years",
    "data.roads": "auto",
    "data.sensors": 0,
    "data.steps": 0,
    "data.image_size": 64,
    "data.car_relations": "nearby",
    "data.generator_seed": 0,
    "data.val_fraction": 0.0,
    "data.graph": "own",
    "data.neighbours": 5,
    "novel_fraction": 0.0,
    "novel.rounds": 0,
    "novel.code": "neighbours",
    "novel.graph": "inductive",
    "tuning.part": "",
    "tuning.steps": 50,
    "tuning.epochs": 0,
    "attack.name": "",
    "attack.clients": [],
    "attack.target": 1,
    "attack.trigger_size": 0,
    "defence.name": "",
    "defence.attackers": 1,
    "model.name": "mlp",
    "model.hidden": [16, 16],
    "model.width": 64,
    "model.lowering": "patches",
    "model.weights": "",
    "algorithm.name": "panacea",
    "algorithm.layer": "sage",
    "algorithm.embedding_dim": 100,
    "algorithm.width": 100,
    "algorithm.profile": "whole",
    "algorithm.rank": 4,
    "algorithm.depth": 3,
    "algorithm.perfedavg_hessian": "hf",
    "algorithm.pfedme_steps": 5,
    "algorithm.sfl_layers": 3,
    "algorithm.sfl_rule": "intended",
    "algorithm.sfl_graph_steps": 10,
    "client_optimizer": "sgd",
    "server_optimizer": "polyak_sgd",
    "hparams.client_lr": 0.1,
    "hparams.server_lr": 0.03,
    "hparams.lambda_d": 0.01,
    "hparams.code_dropout": 0.1,
    "hparams.mu": 0.1,
    "hparams.ditto_lambda": 0.1,
    "hparams.perfedavg_alpha": 0.01,
    "hparams.pfedme_lr": 0.05,
    "hparams.pfedme_lambda": 15.0,
    "hparams.pfedme_beta": 1.0,
    "hparams.sfl_lambda": 0.3,
    "hparams.sfl_share": 1.0,
    "hparams.sfl_graph_share": 0.05,
    "hparams.sfl_graph_lr": 0.01,
    "hparams.sampling_decay": 50.0,
    "hparams.tuning_lr": 0.1,
    "hparams.attack_ratio": 0.0,
    "hparams.attack_lambda": 0.5,
    "hparams.attack_sigma": 3.0,
    "hparams.attack_z": 1.5,
    "hparams.attack_epsilon": 0.5,
    "hparams.attack_alpha": 0.2,
    "hparams.attack_share": 0.5,
    "hparams.defence_norm": 1.0,
    "hparams.novel_lr": 100.0,
    "hparams.client_momentum": 0.9,
    "hparams.client_weight_decay": 5e-5,
    "hparams.client_clip": 50.0,
    "hparams.server_momentum": 0.9,
    "hparams.server_weight_decay": 1e-3,
    "hparams.server_clip": 50.0,
}
OLD_FIELDS = {new: old for old, new in RENAMED_FIELDS.items()}
OLD_VALUES = {
    field: {new: old for old, new in values.items()} for field, values in RENAMED_VALUES.items()
}


def old_field(name, value):
    """The name and the value of a field in the last release."""
    values = OLD_VALUES.get(name, {})
    old = values.get(value, value) if isinstance(value, str) else value
    return OLD_FIELDS.get(name, name), old


def old_values(values):
    """All fields of the last release, by dotted name, for a run with such `values`."""
    renamed = dict(old_field(name, value) for name, value in values.items())
    return DEFAULTS | {name: value for name, value in renamed.items() if name in DEFAULTS}


def old_identity(text):
    """The identity of a run in trials.jsonl."""
    without = {"checkpoint_every", "data.path", "data.root", "data.download"}
    values = old_values(json.loads(text))
    return json.dumps({name: values[name] for name in sorted(values.keys() - without)})


def make_old(out: Path, **changes):
    """Turns the folder of a run into one of the last release.

    Args:
      out: of the run.
      **changes: values of fields of the last release, with __ for the dots.
    """
    forget_digests(out)
    path = out / "config.json"
    values = old_values(flat(json.loads(path.read_text())))
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    nested = {}
    for name, value in values.items():
        section, _, last = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[last] = value
    path.write_text(json.dumps(nested))
    for body in bodies(out):
        for leaf in body["leaves"]:
            leaf[0] = re.sub(r"^\.clients\[0\]", ".clients", leaf[0])
            leaf[0] = re.sub(r"^\.server\.opt_state", ".server.memory", leaf[0])
            leaf[0] = leaf[0].replace("['embeddings']", "['codes']")
        body["notes"]["seconds"]["novel"] = body["notes"]["seconds"].pop("new_clients")


def forget_digests(out: Path):
    """Removes from the folder of a run the digests that the last release did not have."""
    for name in ("identity.json", ".lock"):
        (out / name).unlink()
    for body in bodies(out):
        notes = body["notes"]
        notes["identity"] = {"data": notes["identity"]["data"], **notes.pop("where")}


def bodies(out: Path):
    """The content of every manifest of a run, which is written with its changes."""
    for manifest in out.glob("checkpoints/*.json"):
        body = json.loads(manifest.read_text())["body"]
        yield body
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        manifest.write_text(json.dumps({"body": body, "sha256": digest}))
