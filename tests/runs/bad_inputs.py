"""One table of bad inputs: fields, flags, files, folders and environments of the commands.

Each row has the line that it must give. `test_bad_inputs` checks all of them: status 2, one
line, and nothing written.
"""

import io
import pickle
import warnings
import zipfile
from typing import NamedTuple

import h5py
import numpy as np

from tests.commands import ROOT

FL60, TPT48, CUSTOM, PEMS, CARS, CIFAR, RAYS = (
    f"--config={ROOT}/configs/{name}.py"
    for name in ("fl60", "tpt48", "custom", "pems_bay", "compcars", "cifar10", "chest_xray")
)
SIMULATED = "--config.data.source=simulated"
SIMULATED_FIELD = {"data.source": "simulated"}
ROADS = [PEMS, SIMULATED, "--config.data.sensors=6", "--config.data.steps=100"]
FLIP = [FL60, "--config.attack.name=label_flip"]
SLEEPER = [FL60, "--config.attack.name=sleeper", "--config.hparams.attack_ratio=0.1"]
VALIDATED = [FL60, "--config.data.val_fraction=0.2"]
TPE = [*VALIDATED, "--grid.algorithm=local,fedavg", "--sampler=tpe", "--samples=2"]
CLIP, MONOTONE = {"defence.name": "clip"}, {"defence.name": "monotone"}
FIVE_MINUTES = 5 * 60 * 10**9  # nanoseconds


def npz(**changes):
    """A file of six clients with five examples each, as text; a change to None leaves out."""
    arrays = {"x": np.ones((30, 2)), "y": np.arange(30) % 2, "client": np.repeat(range(6), 5)}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue().decode("latin1")


def npz_twice():
    """A zip file that has the array x twice."""
    file = io.BytesIO(npz().encode("latin1"))
    with warnings.catch_warnings(), zipfile.ZipFile(file, "a") as archive:
        warnings.simplefilter("ignore")  # which zipfile gives for the second member
        archive.writestr("x.npy", archive.read("x.npy"))
    return file.getvalue().decode("latin1")


def frame(*, times=None, sensors=("7", "8"), values=None, declared=0, name="block0_values"):
    """A file of speeds as pandas writes it; `declared` is a number of rows without content."""
    file = io.BytesIO()
    with h5py.File(file, "w") as hdf:
        group = hdf.create_group("df")
        group["axis0"] = group["block0_items"] = np.array(sensors, "S")
        if declared:
            sizes = {"axis1": (declared,), name: (declared, 2)}
            for array, shape in sizes.items():
                chunks = (1000,) + shape[1:]
                group.create_dataset(array, shape=shape, dtype="f8", chunks=chunks)
        else:
            times = FIVE_MINUTES * np.arange(30) if times is None else times
            group["axis1"] = times.astype(np.int64)
            group[name] = np.full((30, 2), 60.0) if values is None else values
        group["axis1"].attrs["kind"] = b"datetime64"
    return file.getvalue().decode("latin1")


def config_file(values):
    imported = "from ml_collections import ConfigDict"
    return f"{imported}\ndef get_config(): return ConfigDict({values})\n"


def registering(statement, values="{}"):
    """A configuration file with client models without a head, which registers one thing."""
    return f"""
import flax.linen as nn
import graphfl_jax as g
def net(*, inputs, outputs, task):
    return g.client_model(body=nn.Dense(outputs), inputs=inputs, task=task)
def wide(*, inputs, task):
    return g.client_model(body=nn.Dense(9), inputs=inputs, task=task)
def kept(*, inputs, task):
    return g.client_model(body=nn.BatchNorm(False), inputs=inputs, task=task)
{statement}
def get_config():
    values = {values}
    return g.configs.configuration({{"data.name": "fl60", "algorithm.name": "fedavg"}} | values)
"""


# The files in the working folder of every refusal.
FILES = {
    "good.npz": npz(),
    "images.npz": npz(x=np.zeros((30, 8, 8, 3), np.uint8), y=np.arange(30) % 4),
    "torn.npz": npz()[:500],
    "objects.npz": npz(client=np.array(["ann", "bob"] * 15, object)),
    "lacking.npz": npz(client=None),
    "typo.npz": npz(edge=[(0, 1)]),
    "lengths.npz": npz(y=np.arange(29)),
    "split.npz": npz(split=["train"] * 29 + ["tset"]),
    "marked.npz": npz(split=["train", "test", "test", "train", "train"] * 6),
    "stranger.npz": npz(edges=[(0, 1), (5, 6)]),
    "itself.npz": npz(client=np.repeat(list("abcdef"), 5), edges=[("b", "b")]),
    "file": "",
    "run/config.json": "{}",
    "own/config.json": '{"algorithm": {"name": "mine"}}',
    "unnamed.py": registering("g.register.model('my-net', net)"),
    "taken.py": registering("g.register.algorithm('fedavg', net)"),
    "unread.py": registering("g.register.algorithm('own', lambda model, *, mu: model)"),
    "narrow.py": registering("g.register.metric('own', lambda outputs, y: 0.0)"),
    "lean.py": registering(
        "g.register.model('net', net)", "{'model.name': 'net', 'algorithm.name': 'fedper'}"
    ),
    "regression.py": (
        "from graphfl_jax.configs import change, tpt48\n"
        "def get_config(method):\n"
        "    changes = {'data.source': 'simulated', 'rounds': 1, 'local_steps': 1}\n"
        "    return change(tpt48.get_config(method), changes)\n"
    ),
    "cars.py": (
        "from graphfl_jax.configs import change, compcars\n"
        "def get_config(method):\n"
        "    return change(compcars.get_config(method), {'data.source': 'real'})\n"
    ),
    "misspelt.py": (
        "import graphfl_jax as g\n"
        "def get_config():\n"
        "    return g.configs.configure('fedavg', 'fl60', settings={'local_step': 5})\n"
    ),
    "wide.py": registering("g.register.model('wide', wide)", "{'model.name': 'wide'}"),
    "kept.py": registering("g.register.model('kept', kept)", "{'model.name': 'kept'}"),
    "text.pkl": "no pickle\n",
    "no.safetensors": "no tensors\n",
    "torn.pkl": "\x80\x04\x95\x00\x00",
    "torn.txt": "0010021895  44.00  38.00  55.10\n",
    "short.txt": "0010021895" + "  44.00" * 12 + "\n",
    "again.npz": npz_twice(),
    "text.npz": npz(x=np.full((30, 2), "one")),
    "scalar.npz": npz(x=1.0, y=2.0),
    "empty.npz": npz(x=np.ones((0, 2)), y=np.arange(0), client=np.arange(0)),
    "nan.npz": npz(x=np.full((30, 2), np.nan)),
    "labels.npz": npz(y=1000 * np.arange(30)),
    "negative.npz": npz(y=np.arange(30) - 1),
    "columns.npz": npz(y=np.arange(30)[:, None]),
    "fractions.npz": npz(client=np.arange(30) / 2),
    "triples.npz": npz(edges=[(0, 1, 2)]),
    "double.npz": npz(edges=[(0, 1), (1, 0)]),
    "light.npz": npz(edges=[(0, 1)], edge_weight=[-1.0]),
    "unequal.npz": npz(edges=[(0, 1)], edge_weight=[1.0, 2.0]),
    "pointing.npz": npz(edges=[(0, 1)], directed=[True]),
    "trainless.npz": npz(split=["test"] * 30),
    "single.npz": npz(client=np.arange(30)),
    "targets.npz": npz(y=np.arange(30.0), client=None),
    "speeds.h5": frame(),
    "seconds.h5": frame(times=300 * np.arange(30)),
    "quarters.h5": frame(times=3 * FIVE_MINUTES * np.arange(30)),
    "backwards.h5": frame(times=-FIVE_MINUTES * np.arange(30)),
    "doubled.h5": frame(sensors=["7", "7"]),
    "fast.h5": frame(values=np.full((30, 2), 2000.0)),
    "silent.h5": frame(values=np.zeros((30, 2))),
    "declared.h5": frame(declared=10**13),
    "empty.h5": frame(name="other"),
    "below/pems-bay/distances_bay_2017.csv": "from,to,cost\n7,8,-5\n",
    "quoted/pems-bay/distances_bay_2017.csv": 'from,to,cost\n7,8,"5\n' + 30_000 * "8,7,5\n",
    "other/pems-bay/distances_bay_2017.csv": "from,to,cost\n7,8,5\n8,7,5\n7,8,6\n",
    "twice/pems-bay/adj_mx_bay.pkl": pickle.dumps(
        (["7", "7"], {"7": 0}, [[0.0, 0.5], [0.5, 0.0]])
    ).decode("latin1"),
    "raising.py": (
        "def get_config():\n    raise KeyError('lr')\n\ndef get_points():\n"
        "    raise ValueError('no points')\n"
    ),
    "dividing.py": "def half(n):\n    return 1 / n\n\ndef get_config(): return half(0)\n",
    "lacking.py": "import no_such_module\n",
    "leaving.py": "raise SystemExit(3)\n",
    "plain.py": "def get_config(): return {'rounds': 4}\n",
    "constant.py": "get_config = 3\n",
    "section.py": config_file("{'data': 3}"),
    "nested.py": config_file("{'seed': {'first': 3}}"),
    "kind.py": config_file("{'rounds': '5'}"),
    "list/config.json": "[1]",
    "null/config.json": "null",
    "number/config.json": "3",
    "cut/config.json": '{"rounds',
    "flat/config.json": '{"data": 3}',
    "broken.py": "def get_config(:",
    "empty.py": "",
    "listed.py": "def get_points(): return [{'algorithm.name': ['fedavg', 'panacea']}]",
    "methods.py": "def get_points(): return [{'algorithm': ['fedavg']}]",
    "number.py": "def get_config(): return 3",
    "points.py": (
        "def get_points(): return [{'algorithm': 'local', 'local_steps': k} for k in (1, 2)]"
    ),
}


def user_file(name, *settings):
    """Flags that read one of the files above."""
    words = [f"data.path={name}.npz", *settings]
    return [CUSTOM, *(f"--config.{word}" for word in words)]


IMAGES = user_file("images", "model.name=resnet18", "model.width=8")
IMAGES[0] += ":fedavg"
BACKDOOR = [*IMAGES, "--config.attack.name=backdoor"]
# The configuration, fields as text, and what the error must say: the field, its value, what is
# wrong, and the remedy.
FIELDS = [
    # what is no field
    (
        "fl60",
        {"round": "5"},
        "^round=5 is not a field; perhaps rounds is meant; .* seed, rounds",
    ),
    (
        "fl60",
        {"data.nmae": "fl60"},
        "^data.nmae=fl60 .*perhaps data.name, .* is meant; .*data.graph",
    ),
    # what the configuration does not read
    (
        "tpt48:fedavg",
        {"hparams.mu": "0.3"},
        "^hparams.mu=0.3 is not read .*algorithm.name=fedprox; .* are hparams.client_lr$",
    ),
    ("fl60", {"hparams.attack_ratio": "0.1"}, "^hparams.attack_ratio=0.1 .*belongs to attack"),
    ("fl60", {"attack.clients": "3"}, "^attack.clients=3 .*attack.name; .* are attack.name$"),
    ("fl60", {"data.download": "false"}, "^data.download=false .*belongs to data.name=tpt48"),
    ("fl60", {"new_clients.rounds": "1"}, "^new_clients.rounds=1 .*new_clients.fraction"),
    ("fl60", {"tuning.epochs": "1"}, "^tuning.epochs=1 .*belongs to tuning.part"),
    ("fl60", {"defence.attackers": "1"}, "^defence.attackers=1 .*defence.name=krum"),
    ("fl60", {"data.neighbours": "4"}, "^data.neighbours=4 .*data.graph=knn"),
    ("fl60", {"hparams.client_momentum": "0.9"}, "client_momentum=0.9 .*client_optimizer=mom"),
    # text that is not of the field's type
    ("fl60", {"rounds": "abc"}, "^rounds=abc is not of type int; its values are >= 1$"),
    ("fl60", {"rounds": "1.5"}, "^rounds=1.5 is not of type int"),
    ("fl60", {"hparams.client_lr": "x"}, "^hparams.client_lr=x is not of type float"),
    ("tpt48", {"data.download": "maybe"}, "^data.download=maybe .*type bool; .*true, false$"),
    (
        "fl60",
        {"data.graph": "knn", "data.neighbours": "few"},
        "^data.neighbours=few .*type int",
    ),
    # unknown choices
    ("fl60", {"algorithm.name": "fedsgd"}, "^algorithm.name='fedsgd' .*choose from .*fedavg"),
    ("fl60", {"data.name": "mnist60"}, "^data.name='mnist60' .*fl60.*tpt48"),
    ("fl60", {"model.name": "cnn99"}, "^model.name='cnn99' .*mlp"),
    ("fl60", {"client_optimizer": "lion"}, "^client_optimizer='lion' .*sgd"),
    ("fl60", {"server_optimizer": "lion"}, "^server_optimizer='lion' .*sgd"),
    ("fl60", {"algorithm.layer": "gat"}, "^algorithm.layer='gat' .*sage, mean, gcn$"),
    ("fl60", {"algorithm.output": "half"}, "^algorithm.output='half' .*direct, .*lora$"),
    ("fl60:sfl", {"algorithm.sfl_rule": "no"}, "^algorithm.sfl_rule='no' .*as_released"),
    ("fl60", {"tuning.part": "tail"}, "^tuning.part='tail' .*whole, head, .*empty for none$"),
    ("fl60", {"attack.name": "gas"}, "^attack.name='gas' .*label_flip.*min_max"),
    ("fl60", {"defence.name": "wall"}, "^defence.name='wall' .*clip.*krum"),
    ("fl60", {"data.graph": "near"}, "^data.graph='near' .*own, knn$"),
    ("compcars", {"data.car_relations": "all"}, "^data.car_relations='all' .*nearby, adjacent"),
    (
        "compcars",
        {"model.lowering": "fft"},
        "^model.lowering='fft' .*auto, rows, .*, xla$",
    ),
    (
        "fl60",
        {"new_clients.fraction": "0.2", "new_clients.graph": "no"},
        "^new_clients.graph='no' .*inductive, transductive$",
    ),
    (
        "fl60",
        {"new_clients.fraction": "0.2", "algorithm.new_client_embedding": "no"},
        "^algorithm.new_client_embedding='no' .*neighbours, ",
    ),
    ("fl60", {"eval.points": "G,Q"}, "^eval.points=G,Q: 'Q' is unknown; choose from G, L, P$"),
    # values outside their range
    (
        "fl60",
        {"client_chunk": "-1"},
        "^client_chunk=-1 must be at least 0; set --config.client",
    ),
    ("fl60", {"cohort_size": "0"}, "^cohort_size=0 must be at least 1; set --config.cohort_s"),
    ("fl60", {"batch_size": "0"}, "^batch_size=0 must be at least 1"),
    ("fl60", {"local_steps": "0"}, "^local_steps=0 must be at least 1"),
    ("fl60", {"rounds": "-5"}, "^rounds=-5 must be at least 1"),
    ("fl60", {"clients_per_eval": "-1"}, "^clients_per_eval=-1 must be at least 0"),
    ("fl60", {"seed": "-1"}, r"^seed=-1 is not in \[0, "),
    ("pems_bay", {"data.sensors": "-1"}, "^data.sensors=-1 must be at least 0"),
    (
        "fl60",
        {"hparams.client_lr": "-0.1"},
        "^hparams.client_lr=-0.1 must be finite .*0 or more",
    ),
    ("fl60", {"hparams.client_lr": "nan"}, "^hparams.client_lr=nan must be finite"),
    (
        "fl60",
        {"hparams.embedding_dropout": "1.5"},
        r"^hparams.embedding_dropout=1.5 .*\[0, 1\]$",
    ),
    (
        "fl60",
        {"data.val_fraction": "0.9"},
        r"^data.val_fraction=0.9 is not in \[0, 0.8\]; set ",
    ),
    (
        "fl60",
        {"attack.name": "label_flip", "hparams.attack_ratio": "1.5"},
        r"^hparams.attack_ratio=1.5 is not in \[0, 1\]",
    ),
    (
        "fl60",
        {"new_clients.fraction": "0.2", "new_clients.rounds": "-1"},
        "^new_clients.rounds=-1 must be at least 0",
    ),
    ("fl60", {"tuning.part": "head", "tuning.epochs": "-1"}, "^tuning.epochs=-1 must be at"),
    ("fl60", {"data.graph": "knn", "data.neighbours": "0"}, "^data.neighbours=0 .*at least 1"),
    (
        "fl60",
        {"defence.name": "krum", "defence.attackers": "-1"},
        "^defence.attackers=-1 must be at least",
    ),
    ("fl60", CLIP | {"hparams.defence_norm": "-1"}, "^hparams.defence_norm=-1.0 .*at least 0"),
    ("fl60", MONOTONE | {"hparams.defence_norm": "-1"}, "^hparams.defence_norm=-1.0 .*=0 or m"),
    (
        "fl60",
        MONOTONE | {"hparams.defence_threshold": "2"},
        r"^hparams.defence_threshold=2.0 is not in \[-1.5, 1.5\]; set",
    ),
    (
        "fl60",
        MONOTONE | {"hparams.defence_memory": "1.2"},
        r"^hparams.defence_memory=1.2 is not in \[0, 1\]; set",
    ),
    (
        "fl60",
        MONOTONE | {"hparams.defence_agreement": "nan"},
        "^hparams.defence_agreement=nan must be finite and at least 0; set",
    ),
    (
        "fl60",
        {"attack.name": "sleeper", "attack.period": "0"},
        "^attack.period=0 must be at least 1; set",
    ),
    # numbers that programs cannot hold
    ("fl60", {"rounds": "99999999999"}, "^rounds=99999999999 is too large for 32 bits; set"),
    ("fl60", {"batch_size": "1000000000000"}, "^batch_size=1000000000000 .*=?2147483647 or l"),
    ("fl60", {"batch_size": "1e12"}, "^batch_size=1e12 is not of type int"),
    (
        "fl60",
        {"tuning.part": "whole", "tuning.steps": "2000000000"},
        "^tuning.steps=2000000000 needs .*B are there; choose a smaller one",
    ),
    (
        "custom",
        {"data.path": "good.npz", "data.scale_by": "client"},
        "scale_by=client has no e",
    ),
    ("fl60", {"local_steps": "99999999999"}, "^local_steps=99999999999 is too large for 32"),
    ("fl60", {"eval_batch_size": "9999999999"}, "^eval_batch_size=9999999999 is too large"),
    ("fl60", {"algorithm.server_steps": "2147483648"}, "^algorithm.server_steps=2147483648 .*"),
    ("pems_bay", {"data.steps": "100000000000"}, "^data.steps=100000000000 is too large"),
    ("fl60", {"hparams.client_lr": "1e300"}, r"^hparams.client_lr=1e\+300 is too large for 32"),
    ("fl60", {"hparams.client_lr": "inf"}, "^hparams.client_lr=inf must be finite"),
    ("fl60", {"seed": "4294967296"}, r"^seed=4294967296 is not in \[0, 4294967295\]"),
    ("fl60", {"new_clients.fraction": "inf"}, r"^new_clients.fraction=inf is not in \[0, 1\]"),
    ("fl60", {"new_clients.fraction": "nan"}, r"^new_clients.fraction=nan is not in \[0, 1\]"),
    # settings that mean nothing
    (
        "fl60",
        {"model.weights": "no.pth"},
        "^model.weights=no.pth .*belongs to model.name=resnet",
    ),
    (
        "fl60:fedavg",
        {"algorithm.layer": "banana"},
        "^algorithm.layer=banana is not read .*pana",
    ),
    (
        "fl60:fedavg",
        {"client_optimizer": "momentum", "hparams.client_clip": "0"},
        "^hparams.client_clip=0.0 must be finite and at least 1e-06",
    ),
    (
        "fl60:fedavg",
        {"client_optimizer": "momentum", "hparams.client_momentum": "1.5"},
        r"^hparams.client_momentum=1.5 is not in \[0, 1\]",
    ),
    (
        "fl60",
        {"attack.name": "label_flip", "attack.clients": "(True,)"},
        r"^attack.clients=\(True,\) has the item True; set .* to integers or names",
    ),
    ("fl60", {"model.hidden": "(True,)"}, r"^model.hidden=\(True,\) has the item True"),
    ("fl60", {"model.hidden": "(3.5,)"}, r"^model.hidden=\(3.5,\) has the item 3.5"),
    ("fl60", {"model.hidden": "((3,),)"}, r"^model.hidden=\(\(3,\),\) has the item \(3,\)"),
    ("fl60", {"eval.points": "3"}, "^eval.points=3: 3 is unknown; choose from G, L, P$"),
    ("fl60", {"metrics": "f2"}, "^metrics=f2: 'f2' is unknown; choose from balanced_accuracy"),
    ("fl60", {"metrics": "rmse"}, "^metrics=rmse does not fit fl60, which is a classification"),
    (
        "tpt48",
        {"metrics": "auc"} | SIMULATED_FIELD,
        "^metrics=auc does not fit tpt48, which is",
    ),
    ("fl60", {"precision": "float8"}, "^precision='float8' is unknown; perhaps float32"),
    ("fl60", {"algorithm.depth": "2000000000"}, r"^algorithm.depth=2000000000 .*\[2, 1000\]"),
    ("fl60", {"client_schedule": "linear"}, "^client_schedule='linear' is unknown; .*cosine"),
    (
        "fl60",
        {
            "new_clients.fraction": "0.2",
            "new_clients.rounds": "1",
            "client_schedule": "cosine",
            "rounds": "3",
            "hparams.client_horizon": "3",
        },
        "^client_schedule='cosine' has the learning rate 0 after rounds=3, .*client_final",
    ),
]
# Flags, and what the line must say.
FLAGS = [
    ([FL60, "--seeds=2", "--save_models"], "save_models=True is not possible with seeds=2"),
    ([FL60, "--seeds=2", "--report"], "report=True is not possible with seeds=2"),
    (
        ["--resume", "--out=own"],
        "^out=own: algorithm.name='mine' is unknown; choose from .*; or add the --config of th",
    ),
    (["--seeds=2", "--resume", "--out=run"], "config is not set; add the name of a conf"),
    # flags and configuration files
    ([], "config is not set; add the name of a configuration, .*tpt48"),
    (
        ["--config=nowhere.py", "--config.rounds=4"],
        "config=nowhere.py is neither .* nor a file; choose from .*tpt48",
    ),
    (["--config=broken.py"], "config=broken.py cannot be loaded .line 1: SyntaxError: .*; c"),
    (["--config=empty.py"], "config=empty.py has no get_config"),
    (
        ["--config=number.py"],
        "config=number.py: get_config.. returns a int; return a ConfigDict",
    ),
    # own parts
    (["--config=unnamed.py"], "^register.model=my-net is not an identifier; choose a name"),
    (["--config=taken.py"], "^register.algorithm=fedavg is a name of graphfl_jax; choose anot"),
    (["--config=unread.py"], "^register.algorithm=own: 'mu' is neither declared nor .*; give"),
    (["--config=narrow.py"], "^register.metric=own: it does not take three arguments .*; give"),
    (["--config=lean.py"], "^algorithm.name='fedper' needs client models with a head, and .*;"),
    (["--config=wide.py"], r"^model.name='wide' maps .* of shape .9,., and fl60 needs .2,.; m"),
    (
        ["--config=misspelt.py"],
        "^local_step=5 is not a field; perhaps local_steps is meant; th",
    ),
    (["--config=kept.py"], "^body=BatchNorm has the collection batch_stats beside .*; remove"),
    ([f"{FL60}:fedsgd"], "method='fedsgd' is unknown; perhaps fed.*; choose from panacea, "),
    ([FL60, "stray"], "'stray' is not a flag; flags begin with --"),
    ([FL60, "--nosuchflag=1"], "^--nosuchflag is not a flag of run; --help lists the flags"),
    ([FL60, "--resum"], "^--resum is not a flag of run; perhaps --resume.* is meant; --help"),
    ([FL60, "--rounds=2"], "^--rounds is not a flag of run; perhaps --config.rounds is meant"),
    (["tpt84"], "^config=tpt84 is neither a configuration nor a file; perhaps tpt48 is meant"),
    (["configs/fl60.py"], "^config=configs/fl60.py is neither .*; perhaps fl60 is meant"),
    (["fl60:fedagv"], "^method='fedagv' is unknown; perhaps fedavg, .* is meant; choose from"),
    (["fl60", "--config.algorithm.name=fedagv"], "^algorithm.name='fedagv' .* perhaps fedavg"),
    ([FL60, "--config.rounds"], "config.rounds has no value; add --config.rounds=VALUE"),
    ([FL60, "--config.rounds", "--resume"], "config.rounds has no value"),
    ([FL60, "--config.rounds", "1.5"], "rounds=1.5 is not of type int"),
    ([f"{TPT48}:fedavg", "--config.hparams.mu=0.3"], "hparams.mu=0.3 is not read .*fedprox"),
    ([FL60, "--help", "--config.round=5"], "round=5 is not a field"),
    # folders
    ([FL60, "--out=file"], "out=file cannot be written .*is a file.; choose another"),
    (
        [FL60, "--out=file/below"],
        "out=file/below cannot be written .*is a file.; choose another",
    ),
    ([FL60, "--out=run"], "out=run already holds a run; add --resume"),
    (
        [FL60, "--out=run", "--resume"],
        "data.name='fl60' differs from 'tpt48' in .* run; resume",
    ),
    ([FL60, "--resume"], "resume=True needs the folder of the run; add --out=DIR"),
    ([FL60, "--resume", "--out="], "resume=True needs the folder of the run; add --out=DIR"),
    ([FL60, "--out=a[1]"], r"out=a\[1\] has a bracket"),
    # fields that do not fit the data
    ([FL60, "--config.cohort_size=61"], "cohort_size=61 exceeds the 60 clients .*=60 or less"),
    ([FL60, "--config.model.hidden=()"], r"model.hidden=\(\).*16,16"),
    ([FL60, "--config.model.name=gru"], "model.name='gru' forecasts series"),
    (
        [FL60, "--config.new_clients.fraction=0.01"],
        "new_clients.fraction=0.01 makes 0 of the 60 clients",
    ),
    (
        [FL60, "--config.new_clients.fraction=1"],
        r"new_clients.fraction=1.0 makes 60 .*set it in \[0.017",
    ),
    (
        [FL60, "--config.new_clients.fraction=0.95"],
        "cohort_size=5 exceeds the 3 clients that train",
    ),
    ([*FLIP, "--config.attack.clients=60"], "attack.clients has 60, .*numbers from 0 to 59"),
    ([*FLIP, "--config.attack.clients=('Ann','Bo')"], "attack.clients has 'Ann', .*fl60"),
    (
        [*FLIP, "--config.attack.clients=3", "--config.hparams.attack_ratio=0.1"],
        "attack.clients=3 and hparams.attack_ratio=0.1 both choose .*; leave one out",
    ),
    (
        [*FLIP, f"--config.attack.clients={tuple(range(61))}"],
        "attack.clients has 60, which does not train in fl60; .*from 0 to 59",
    ),
    (
        [*FLIP, "--config.attack.clients=('domain 3',3)"],
        "attack.clients has client 3, 'domain 3', twice; name each attacker once",
    ),
    (
        [*SLEEPER, "--config.attack.period=50"],
        "attack.honest_rounds=50 leaves no round of a period of 50 .*rounds to 49 or less, or",
    ),
    ([FL60, "--config.attack.name=backdoor"], "backdoor' needs images .*; use compcars"),
    (
        [TPT48, SIMULATED, "--config.attack.name=label_flip_wrong"],
        "needs classes, .*name=label_flip",
    ),
    (
        [*ROADS, "--config.attack.name=label_flip"],
        "label_flip' cannot change targets .*name=poisoning",
    ),
    ([*BACKDOOR, "--config.attack.trigger_size=9"], "trigger_size=9 .*8 x 8; .*in .0, 8"),
    ([*BACKDOOR, "--config.attack.target=4"], r"attack.target=4 is not a label; .*\[0, 3\]"),
    ([FL60, "--config.defence.name=median"], "'median' makes one model .*clip, monotone, krum"),
    ([f"{FL60}:local", "--config.defence.name=clip"], "'clip' has no effect.*leave it empty"),
    (
        [f"{FL60}:local", "--config.defence.name=monotone"],
        "'monotone' has no effect: .*algorithm.name='local' upload nothing; leave it empty",
    ),
    (
        [f"{FL60}:fedproto", "--config.defence.name=monotone"],
        "'monotone' compares .* algorithm.name='fedproto' send none; choose from clip, krum",
    ),
    (
        [FL60, "--config.defence.name=krum", "--config.defence.attackers=2"],
        "defence.attackers=2 is too many for krum in a cohort of 5; .*cohort_size=7",
    ),
    ([*ROADS, "--config.data.steps=20"], "20 steps are too few .*; give at least 32"),
    ([*ROADS, "--config.model.hidden=(3,3)"], r"model.hidden=\(3, 3\).*one width"),
    ([*ROADS, "--config.model.name=resnet18"], "takes images of shape"),
    (
        [FL60, "--config.data.graph=knn", "--config.data.neighbours=60"],
        r"neighbours=60 .*clients, 60; set .*\[1, 59\]",
    ),
    (
        user_file("good"),
        "algorithm.name='panacea' needs .* custom has none; .*--config.data.graph=knn",
    ),
    # files
    ([FL60, "--config.data.source=real", "--data_root=none"], "none/dg60/toy_d60_spiral.pkl"),
    ([CARS, "--config.data.source=real", "--data_root=none"], "none/compcars/car-images.txt"),
    (
        [FL60, "--config.data.source=file", "--config.data.path=torn.pkl"],
        "torn.pkl: .*complete",
    ),
    (
        [FL60, "--config.data.source=file", "--config.data.path=text.pkl"],
        "text.pkl: .*complete",
    ),
    ([TPT48, "--config.data.path=nowhere.txt"], "data.path='nowhere.txt' is not a file"),
    ([TPT48, "--config.data.path=torn.txt"], "torn.txt: line 1 is not"),
    ([TPT48, "--config.data.path=short.txt"], "short.txt: .*incomplete .* Alabama 1896"),
    ([TPT48, "--config.data.path=text.pkl"], "text.pkl: line 1 is not"),
    ([PEMS, "--config.data.path=nowhere.h5"], "data.path='nowhere.h5' is not a file"),
    ([PEMS, "--config.data.path=text.pkl"], "text.pkl: .*fixed format.*DCRNN"),
    ([*IMAGES, "--config.model.weights=no.pth"], "model.weights='no.pth' does not exist"),
    ([*IMAGES, "--config.model.weights=text.pkl"], "text.pkl' .*ends in .safetensors or .pth"),
    ([*IMAGES, "--config.model.weights=no.safetensors"], "no.safetensors' is damaged .*again"),
    ([CUSTOM], "data.path is empty; set --config.data.path"),
    (user_file("nowhere"), "data.path='nowhere.npz' is not a file"),
    ([CUSTOM, "--config.data.path=text.pkl"], "text.pkl: .*not a complete npz.*np.savez"),
    (user_file("torn"), "torn.npz: .*not a complete npz file.*np.savez"),
    (user_file("objects"), "objects.npz: the array 'client' .*strings and not as objects"),
    (user_file("lacking"), "lacking.npz: there is no array 'client'; add it"),
    (user_file("typo"), "typo.npz: the array 'edge' is unknown; choose from x, .*edges"),
    (user_file("lengths"), r"lengths.npz: .*y has shape \(29,\) and x has \(30, 2\); give one"),
    (user_file("split"), "split.npz: .*split has 'tset' at example 29; use train, val, test"),
    (
        user_file("marked", "data.val_fraction=0.1"),
        "marked.npz: data.val_fraction=0.1 .*set it to 0",
    ),
    (
        user_file("stranger"),
        r"stranger.npz: .*number 1, \(5, 6\), names client 6, .*no examples",
    ),
    (user_file("itself"), r"itself.npz: .*number 0, \('b', 'b'\), joins a client to itself"),
    # sizes that do not fit into memory
    (
        [f"{FL60}:fedavg", "--config.model.hidden=(1000000,1000000)"],
        r"model.hidden=\(1000000, 1000000\) needs .* TiB, .* are there; choose a smaller one",
    ),
    ([FL60, "--config.algorithm.width=100000000"], "algorithm.width=100000000 needs .* PiB, "),
    (
        [f"{FL60}:pfedhn", "--config.algorithm.embedding_dim=2000000000"],
        "algorithm.embedding_dim=2000000000 needs .* TiB, ",
    ),
    ([f"{FL60}:fedavg", "--config.batch_size=2000000000"], "batch_size=2000000000 needs"),
    ([f"{FL60}:fedavg", "--config.local_steps=2000000000"], "local_steps=2000000000 needs"),
    (
        [CARS, SIMULATED, "--config.data.image_size=1000000"],
        "data.image_size=1000000 needs 11.2 PiB, .* are there; choose a smaller one",
    ),
    (
        [RAYS, SIMULATED, "--config.data.image_size=1000000"],
        "data.image_size=1000000 needs 2.8",
    ),
    (
        [CIFAR, SIMULATED, "--config.data.image_size=1000000"],
        "data.image_size=1000000 needs 18",
    ),
    (
        [CIFAR, SIMULATED, "--config.data.clients=2000000000"],
        "data.clients=2000000000 needs 209",
    ),
    (
        [PEMS, SIMULATED, "--config.data.sensors=1000000000"],
        "data.sensors=1000000000 needs 6.9",
    ),
    ([PEMS, SIMULATED, "--config.data.steps=2000000000"], "data.steps=2000000000 needs 2.36 T"),
    (
        [PEMS, "--config.data.path=declared.h5"],
        "declared.h5 needs 218 TiB, .* are there; choose",
    ),
    # configuration files
    (
        ["--config=raising.py"],
        r"config=raising.py cannot be loaded .line 2: KeyError: 'lr'.; cor",
    ),
    (
        ["--config=dividing.py"],
        "config=dividing.py cannot be loaded .line 2: ZeroDivisionError",
    ),
    (
        ["--config=lacking.py"],
        "config=lacking.py .*line 1: ModuleNotFoundError: No module named",
    ),
    (["--config=leaving.py"], "config=leaving.py cannot be loaded .line 1: SystemExit: 3"),
    (
        ["--config=plain.py"],
        "config=plain.py: get_config.. returns a dict; return a ConfigDict",
    ),
    (
        ["--config=plain.py:fedavg"],
        "config=plain.py .*TypeError: get_config.. takes 0 position",
    ),
    (["--config=constant.py"], r"config=constant.py has no get_config\(\); define it"),
    (["--config=section.py"], "data=3 is not a field"),
    (["--config=nested.py"], "seed.first=3 is not a field"),
    (["--config=kind.py"], "rounds='5' is of type str; set --config.rounds to an integer"),
    # folders
    ([FL60, "--out=list", "--resume"], "list/config.json is missing or damaged"),
    ([FL60, "--out=null", "--resume"], "null/config.json is missing or damaged"),
    ([FL60, "--out=number", "--resume"], "number/config.json is missing or damaged"),
    ([FL60, "--out=cut", "--resume"], "cut/config.json is missing or damaged, .*another --out"),
    ([FL60, "--out=flat", "--resume"], "data.name='fl60' differs from 'tpt48'"),
    # attacks without attackers
    (
        FLIP,
        "attack.name='label_flip' has no attackers with hparams.attack_ratio=0; set a larger",
    ),
    (
        [*FLIP, "--config.hparams.attack_ratio=0.001"],
        "attack.name='label_flip' has no attackers with hparams.attack_ratio=0.001",
    ),
    # arrays of one's own
    (user_file("again"), "again.npz: the array 'x' is given twice; remove one"),
    (user_file("text"), "text.npz: x has type <U3; give numbers"),
    (user_file("empty"), r"empty.npz: x has shape \(0, 2\); give one row for each"),
    (
        user_file("scalar"),
        r"scalar.npz: x has shape \(\); give one row for each of one or more",
    ),
    (user_file("nan"), "nan.npz: client '0' has a NaN or infinite value in x of its example 0"),
    (user_file("labels"), "labels.npz: y has integers up to 29000 in 30 examples; number at l"),
    (user_file("negative"), "negative.npz: client '0' has label -1 at its example 0, counted"),
    (user_file("columns"), r"columns.npz: y has integers of shape \(30, 1\); give one label"),
    (user_file("fractions"), "fractions.npz: client has type float64; give strings or integ"),
    (user_file("triples"), r"triples.npz: edges has shape \(1, 3\); give pairs of clients"),
    (user_file("double"), r"double.npz: .*number 1, \(1, 0\), is given twice"),
    (user_file("light"), r"light.npz: .*number 0, \(0, 1\) \(weight -1.0\)"),
    (user_file("unequal"), r"unequal.npz: edge_weight has shape \(2,\) .* for 1 edges; give"),
    (user_file("pointing"), r"pointing.npz: directed has shape \(1,\) .*; give True or False"),
    (user_file("trainless"), "trainless.npz: client '0' has no 'train' in split; give every"),
    (user_file("single"), "single.npz: client '0' has too few examples .1. for one in each of"),
    (
        user_file("good", "data.partition=iid"),
        "good.npz: data.partition divides examples .*'client' does so too; leave",
    ),
    (
        user_file("targets", "data.partition=iid"),
        "targets.npz: data.partition divides examples by label, and y holds targets; add",
    ),
    # files of traffic
    (
        [PEMS, "--config.data.path=seconds.h5"],
        "seconds.h5: row 1 is 3e-07 s later .*nanoseconds",
    ),
    ([PEMS, "--config.data.path=quarters.h5"], "quarters.h5: row 1 is 900 s later .*5 minutes"),
    ([PEMS, "--config.data.path=backwards.h5"], "backwards.h5: row 1 is not later .*; sort"),
    (
        [PEMS, "--config.data.path=doubled.h5"],
        "doubled.h5: .*30, 2. values for 30 times, 2 nam",
    ),
    (
        [PEMS, "--config.data.path=fast.h5"],
        "fast.h5: sensor 7 has the speed 2000 in row 0",
    ),
    (
        [PEMS, "--config.data.path=silent.h5"],
        "silent.h5: sensor 7 has no readings; leave it ou",
    ),
    ([PEMS, "--config.data.path=empty.h5"], "empty.h5: .*no single frame with block0_values"),
    (
        [PEMS, "--config.data.path=speeds.h5", "--data_root=none"],
        "data.roads: no file none/pems-bay/adj_mx_bay.pkl; put it there .*config.data.roads",
    ),
    (
        [PEMS, "--config.data.path=speeds.h5", "--data_root=below"],
        "below/pems-bay/distances_bay_2017.csv: line 2 has the distance -5; give metres of at",
    ),
    (
        [PEMS, "--config.data.path=speeds.h5", "--data_root=quoted"],
        "distances_bay_2017.csv: the file is no list .*; use the file from",
    ),
    (
        [PEMS, "--config.data.path=speeds.h5", "--data_root=other"],
        "distances_bay_2017.csv: line 4 has another distance from 7 to 8 .*6 and 5",
    ),
    (
        [PEMS, "--config.data.path=speeds.h5", "--data_root=twice"],
        "twice/pems-bay/adj_mx_bay.pkl: sensor 7 is given twice; remove one of them",
    ),
]
# Commands other than experiments.run, their flags, and what the line must say.
OTHERS = [
    (
        "tables",
        ["--configs=nowhere.py", "--methods=fedavg"],
        "configs=nowhere.py is not a file",
    ),
    ("tables", ["--configs=number.py"], "methods is empty; add --methods=fedavg"),
    (
        "tables",
        ["--configs=lean.py,lean.py"],
        "configs=lean.py,lean.py is empty, or has .* rep",
    ),
    (
        "tables",
        ["--configs=lean.py", "--methods=fedsgd"],
        "methods='fedsgd' is unknown; perhaps",
    ),
    (
        "tables",
        ["--configs=lean.py", "--table=panacea_3", "--methods=fedavg"],
        "table=panacea_3 is not read with --configs; leave --table out",
    ),
    (
        "tables",
        ["--configs=regression.py", "--methods=fedavg,fedproto", "--seeds=1"],
        "algorithm.name='fedproto' needs labels",
    ),
    (
        "tables",
        ["--datasets=fl60", "--methods=fedavg", "--page=file#scores"],
        "page=file has no block scores; add the lines <!-- begin scores --> and",
    ),
    ("robustness", [FL60, "--page=no.md#a"], "page=no.md is not a file; choose a page that"),
    ("theory", ["--page=no.md#a"], "page=no.md is not a file; choose a page that has the line"),
    ("figures", ["--page=no.md#a"], "page=no.md is not a file; choose a page that has the"),
    ("bench", [FL60, "--page=no.md#a"], "page=no.md is not a file; choose a page that has the"),
    (
        "tables",
        ["--methods=local,local"],
        "methods=local,local has a repeated entry; name each",
    ),
    ("tables", ["tpt48"], "config=tpt48 is not read, since tables has no configuration"),
    ("tables", ["--config.rounds=3"], "^config.rounds=3 is not read, since tables has no"),
    ("figures", ["--config.rounds=3"], "config.rounds=3 is not read, since panacea_3c has its"),
    (
        *("bench", [FL60, "--compilation_cache=a"]),
        "^compilation_cache=a is not read by this command; leave it out",
    ),
    ("theory", ["--clients=1000000"], r"clients=1000000 needs 7\.28 TiB, .* are there; choose"),
    ("theory", ["--draws=99999999999999"], "draws=99999999999999 needs .* are there; choose"),
    ("theory", ["--config.rounds=3"], "config.rounds=3 is not read, since no --config names"),
    ("figures", ["--figure=partition", "--seeds=2"], "seeds=2 is not read by partition; leave"),
    ("figures", ["--figure=pfedgat_3", "--seeds=2"], "seeds=2 is not read by pfedgat_3; leave"),
    ("figures", ["--figure=architectures", "--rounds=2"], "rounds=2 is not read by architec"),
    ("bench", ["--suite", "--cores=1"], "cores=1 is not read by --suite; leave it out"),
    ("bench", ["--suite", "--config.rounds=3"], "rounds=3 is not read, since --suite has its"),
    ("bench", [FL60, "--config.init_from=first"], "init_from=first is only for single runs"),
    ("soak", ["tpt48"], "config=tpt48 is not read, since soak has no configuration; leave it"),
    (
        "sweep",
        ["--config=taken.py", "--grid.hparams.client_lr=1"],
        "^register.algorithm=fedavg",
    ),
    ("robustness", [FL60, "--attacks=gas"], "attacks='gas' is unknown; choose from label_flip"),
    ("robustness", [FL60, "--ratios=0.001,0.3"], "ratios=0.001,0.3: with 0.001, no client att"),
    ("robustness", [FL60, "--keep=fedavg"], "keep=fedavg has no effect without --best_defenc"),
    ("robustness", [FL60, "--attacks="], "attacks= is empty, or has an empty or a repeated e"),
    ("robustness", [FL60, "--attacks=,poisoning"], "attacks=,poisoning is empty, or has an em"),
    ("robustness", [FL60, "--methods="], "methods= is empty, or has an empty or a repeated"),
    ("robustness", [FL60, "--methods=fedavg,fedavg"], "methods=fedavg,fedavg is empty, or has"),
    ("robustness", [FL60, "--methods=fedsgd"], "method='fedsgd' is unknown; perhaps"),
    (
        "robustness",
        [FL60, "--defences=wall"],
        "defences='wall' is unknown; choose from none, clip",
    ),
    ("robustness", [FL60, "--defences=clip,"], "defences=clip, is empty, or has an empty or a"),
    (
        "robustness",
        [FL60, "--methods=fedavg", "--defences=none,clip", "--best_defences"],
        "best_defences chooses by validation, and there is no validation split; set",
    ),
    (
        "robustness",
        [
            *VALIDATED,
            *("--methods=fedavg", "--defences=none,clip", "--best_defences", "--keep=sfl"),
        ],
        "keep=sfl: sfl is not trained; choose from",
    ),
    (
        "robustness",
        [FL60, "--best_defences"],
        "best_defences chooses from --defences; give two",
    ),
    (
        "robustness",
        [FL60, "--choose_at=0.3"],
        "choose_at=0.3 has no effect without --best_defences; add it",
    ),
    (
        "robustness",
        [FL60, "--defences=none,clip", "--best_defences", "--choose_at=0.25"],
        "choose_at=0.25 has a share that --ratios has not; add it to --ratios",
    ),
    (
        "robustness",
        [FL60, "--methods=panacea", "--defences=median"],
        "defence.name='median' makes one model of all uploads",
    ),
    (
        "robustness",
        [FL60, "--methods=fedavg", "--attacks=poisoning,backdoor"],
        "attack.name='backdoor' needs images",
    ),
    (
        "robustness",
        [FL60, "--config.attack.clients=3"],
        "attack.clients=3 chooses attackers as --ratios does; leave it out",
    ),
    (
        "robustness",
        [f"{FL60}:ditto"],
        "^config=.*fl60.py:ditto names a method, which --methods replaces; .* --methods=ditto$",
    ),
    (
        "robustness",
        [FL60, "--config.hparams.attack_ratio=0.3"],
        "^config.hparams.attack_ratio=0.3 is not read, since --ratios replaces it; leave it o",
    ),
    (
        "robustness",
        [FL60, "--config.attack.name=gas"],
        "^config.attack.name=gas is not read, since --attacks replaces it",
    ),
    (
        "robustness",
        [FL60, "--defences=none,clip", "--config.defence.name=krum"],
        "^config.defence.name=krum is not read, since --defences replaces it",
    ),
    (
        "robustness",
        [FL60, "--config.algorithm.name=local"],
        "^config.algorithm.name=local is not read, since --methods replaces it",
    ),
    (
        "robustness",
        [FL60, "--config.seed=7"],
        "^config.seed=7 is not read, since the runs have the seeds 0, 1, ... of --seeds; leave",
    ),
    ("robustness", [FL60, "--ratios=2"], r"ratios=2 has a value outside \[0, 1\]; set --rat"),
    ("robustness", [FL60, "--out=file"], "out=file cannot be written .*is a file.; choose"),
    ("robustness", [], "config is not set; add the name"),
    (
        "robustness",
        [FL60, "--methods=fedavg", "--config.algorithm.depth=2"],
        "algorithm.depth=2 is not read by any run; remove it",
    ),
    ("sweep", [FL60, "--grid.rounds=1,2"], "data.val_fraction=0.0 leaves no examples"),
    ("sweep", [*VALIDATED], "the sweep has no points; add an axis"),
    (
        *("sweep", [f"{FL60}:ditto", *VALIDATED[1:], "--grid.algorithm=fedavg,local"]),
        "names the method ditto, and --grid.algorithm names others; leave :ditto out",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.hparams.client_lr=0.1", "--loguniform.hparams.client_lr=0.1,1"],
        "^--loguniform.hparams.client_lr=0.1,1 is a second axis of hparams.client_lr; leave",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1", "--config.seed=7"],
        "^config.seed=7 is not read, since the runs have the seeds 0, 1, ... of --seeds; leave",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1", "--config.rounds=2"],
        "^config.rounds=2 is not read, since an axis replaces it; leave it out",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.algorithm=local", "--config.algorithm.name=fedavg"],
        "^config.algorithm.name=fedavg is not read, since an axis replaces it",
    ),
    (
        "sweep",
        [*user_file("good"), "--grid.data.root=a,b"],
        "^data.root=a cannot be a field of a point; set it for the whole sweep, and make anot",
    ),
    (
        "sweep",
        [CUSTOM, "--grid.data.path=good.npz,split.npz"],
        "^data.path=good.npz cannot be a field of a point; set it for the whole sweep, and",
    ),
    (
        "sweep",
        [
            *[*VALIDATED, "--config.attack.name=label_flip", "--config.attack.clients=1,2"],
            "--grid.hparams.attack_ratio=0,0.3",
        ],
        "^attack.clients=1,2 and hparams.attack_ratio=0.3 both choose attackers; leave one out",
    ),
    (
        "sweep",
        [*VALIDATED, "--config.attack.name=label_flip", "--grid.hparams.attack_ratio=0,0.001"],
        "attack.name='label_flip' has no attackers with hparams.attack_ratio=0; set a larger",
    ),
    ("sweep", [*VALIDATED, "--grid.hparams.client_lr=a,b"], "client_lr=a is not of type float"),
    ("sweep", [*VALIDATED, "--grid.hparams.client_lr=-1"], "hparams.client_lr=-1.0 must be fi"),
    (
        "sweep",
        [*VALIDATED, "--config.attack.name=noise", "--grid.hparams.attack_ratio=0.001,0.3"],
        "^attack.name='noise' has no attackers with hparams.attack_ratio=0.001; set a larger",
    ),
    ("sweep", [*VALIDATED, "--grid.local_steps=99999999999"], "local_steps=99999999999 is too"),
    ("sweep", [*VALIDATED, "--grid.hparams.mu=0.1"], "hparams.mu=0.1 is not read by any run"),
    ("sweep", [*VALIDATED, "--grid.algorithm=fedsgd"], "method='fedsgd' is unknown; perhaps"),
    (
        "sweep",
        [*VALIDATED, "--grid.local_steps=" + ",".join(map(str, range(1, 22)))],
        "add --yes",
    ),
    ("sweep", [*VALIDATED, "--points=nowhere.py"], "points=nowhere.py is not a file"),
    ("sweep", [*VALIDATED, "--points=empty.py"], r"points=empty.py has no get_points\(\); def"),
    (
        "sweep",
        [*VALIDATED, "--points=raising.py"],
        "points=raising.py .*line 5: ValueError",
    ),
    (
        "sweep",
        [*VALIDATED, "--points=listed.py"],
        r"algorithm.name=\['fedavg', 'panacea'\] is unknown; choose from ",
    ),
    ("sweep", [*VALIDATED, "--points=methods.py"], r"method=\['fedavg'\] is unknown.*; choose"),
    ("sweep", [*VALIDATED, "--points=a.py", "--samples=3"], "points=a.py cannot be combined"),
    ("sweep", [*VALIDATED, "--grid.rounds=1", "--resume"], "resume=True needs .*add --out=DIR"),
    ("sweep", [*VALIDATED, "--grid.rounds="], "--grid.rounds= lacks a value"),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1", "--sampler=tpe"],
        "samples=0 is not possible with",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.hparams.mu=1", "--sampler=tpe", "--samples=2"],
        "hparams.mu=1.0 is not read by any run of this sweep",
    ),
    (
        "sweep",
        [*TPE, "--config.hparams.client_lrr=9"],
        "^hparams.client_lrr=9 is not read by any run of this sweep; remove it, or add a",
    ),
    (
        "sweep",
        [*TPE, "--config.attack.name=label_flip", "--uniform.hparams.attack_ratio=0,0.001"],
        "^attack.name='label_flip' has no attackers with hparams.attack_ratio=0.001; set a lar",
    ),
    (
        "sweep",
        [
            *VALIDATED,
            "--grid.rounds=1",
            "--sampler=tpe",
            "--samples=2",
            "--shard=1/2",
            "--out=new",
        ],
        "shard=1/2 cannot be combined with sampler=tpe",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1", "--shard=1/2", "--out=new", "--keep_best=1"],
        "^keep_best=1 cannot be combined with shard=1/2, since a part .*; leave one out",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1", "--out=a[1]", "--keep_best=1"],
        r"^out=a\[1\]/best/run has a bracket in its path, .*; choose another --out",
    ),
    ("sweep", [*VALIDATED, "--grid.rounds=1", "--shard=3/2"], "shard=3/2 is not a part; write"),
    ("sweep", [*VALIDATED, "--grid.rounds=1", "--shard=one"], "shard=one is not a part; write"),
    ("sweep", [*VALIDATED, "--grid.rounds=1", "--shard=1/2"], "shard=1/2 needs .* --out=DIR"),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1", "--shard=1/2", "--out=new"],
        "shard=1/2 has no runs; choose fewer parts",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1", "--batch=8"],
        "^batch=8 is not read without --sampler=tpe; add it, or leave --batch out",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1", "--ray_address=host:1"],
        "^ray_address=host:1 is not read without --launcher=ray; add it",
    ),
    (
        "run",
        [FL60, "--seeds=2", "--resume", "--out=typo"],
        "^out=typo-seed0 holds no run to resume; leave --resume out, or correct --out",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1,2", "--config.eval.points=G,L"],
        "eval.points=G,L leaves out P, by which a sweep ranks",
    ),
    (
        "sweep",
        [*VALIDATED, "--grid.rounds=1,2", "--config.eval.splits=test"],
        "eval.splits=test leaves out val, by which a sweep ranks",
    ),
    (
        "sweep",
        [*VALIDATED, "--points=points.py", "--config.local_steps=3"],
        "^config.local_steps=3 is not read, since all points of --points=points.py have it; ",
    ),
    (
        "sweep",
        [*VALIDATED, "--points=points.py", "--config.algorithm.name=ditto"],
        "^config.algorithm.name=ditto is not read, since all points of --points=points.py have",
    ),
    (
        "sweep",
        [f"{FL60}:ditto", *VALIDATED[1:], "--points=points.py"],
        "names the method ditto, and --points=points.py names others; leave :ditto out",
    ),
    (
        "sweep",
        [*TPE, "--grid.data.name=fl60,fl60_paper_formula"],
        "^data.name=fl60,fl60_paper_formula cannot be an axis with sampler=tpe, which compares",
    ),
    (
        "tables",
        ["--configs=own/panacea_2.py", "--methods=local"],
        "^configs=own/panacea_2.py has the name of a table of the papers, whose files would be",
    ),
    (
        *("tables", ["--datasets=pems_bay", "--methods=local", "--data_root=none"]),
        "no file none/pems-bay/pems-bay.h5; put it there .*, or set --source=simulated$",
    ),
    (
        *("tables", ["--configs=cars.py", "--methods=local", "--data_root=none"]),
        "none/compcars/.*, or set data.source in the file of --configs$",
    ),
    (
        *("figures", ["--figure=panacea_fig2", "--data_root=none"]),
        "^pems_bay: no file none/pems-bay/pems-bay.h5; put it there from [^,]*$",
    ),
    ("soak", ["--data_root=a"], "^data_root=a is not read by this command; leave it out"),
    ("theory", ["--data_root=a"], "^data_root=a is not read by this command; leave it out"),
]
# Environments of a process of its own, flags of experiments.run, and what the line must say.
ENVIRONMENTS = [
    ({"JAX_PLATFORMS": "cuda"}, [FL60], "JAX_PLATFORMS=cuda cannot be used .*; set it to cpu"),
    ({"JAX_PLATFORMS": "abacus"}, [FL60], "JAX_PLATFORMS=abacus cannot be used .*; set it to"),
    (
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        [FL60, "--out=\u00fc"],
        r"out='\\udcc3\\udcbc' has characters .* with this locale; set LC_ALL=C.UTF-8",
    ),
]


class Row(NamedTuple):
    """A bad input, and what the one line on stderr must say."""

    command: str
    words: list[str]
    environment: dict[str, str]
    message: str


def rows() -> dict[str, Row]:
    """The table, by names for the tests."""
    found = [
        Row(
            "run",
            [f"--config={ROOT}/configs/{name}.py{colon}{method}"]
            + [f"--config.{field}={text}" for field, text in texts.items()],
            {},
            message,
        )
        for file, texts, message in FIELDS
        for name, colon, method in [file.partition(":")]
    ]
    found += [Row("run", words, {}, message) for words, message in FLAGS]
    found += [Row(command, words, {}, message) for command, words, message in OTHERS]
    found += [Row("run", words, own, message) for own, words, message in ENVIRONMENTS]
    named = {}
    for row in found:
        own = [f"{name}={value}" for name, value in row.environment.items()]
        named[" ".join([row.command, *own, *row.words]).replace(f"{ROOT}/", "")] = row
    return named
