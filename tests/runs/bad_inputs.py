"""One table of bad inputs: fields, flags, files, folders and environments of the commands.

`test_bad_inputs` checks all of them: status 2, one line with the field and its value and with a
remedy, and nothing written.
"""

import io
import pickle
import shlex
import warnings
import zipfile
from typing import NamedTuple

import h5py
import numpy as np

from tests.commands import ROOT

FIVE_MINUTES = 5 * 60 * 10**9  # nanoseconds


def npz(**changes):
    """A file of six clients with five examples each, as text; a change to None leaves out."""
    x = np.arange(60.0).reshape(30, 2)
    arrays = {"x": x, "y": np.arange(30) % 2, "client": np.repeat(range(6), 5)}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue().decode("latin1")


def csv(*lines, header="client,a,b,y"):
    """A table of three clients with eight examples each, and perhaps lines of its own."""
    rows = [f"{'uvw'[i % 3]},{i}.5,{i % 5},{i // 3 % 2}" for i in range(24)]
    return "\n".join([header, *lines, *rows[len(lines) :]])


def npz_twice():
    """A zip file that has the array x twice."""
    file = io.BytesIO(npz().encode("latin1"))
    with warnings.catch_warnings(), zipfile.ZipFile(file, "a") as archive:
        warnings.simplefilter("ignore")  # which zipfile gives for the second member
        archive.writestr("x.npy", archive.read("x.npy"))
    return file.getvalue().decode("latin1")


def frame(
    *, times=None, sensors=("7", "8"), values=None, declared=0, name="block0_values", zone=""
):
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
        if zone:
            group["axis1"].attrs["tz"] = zone
    return file.getvalue().decode("latin1")


def matrix(sensors, table):
    """A pickle of relations between two sensors."""
    return pickle.dumps((sensors, table, [[0.0, 0.5], [0.5, 0.0]])).decode("latin1")


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
    "marked.npz": npz(split=["train", "test", "val", "train", "train"] * 6),
    "stranger.npz": npz(edges=[(0, 1), (5, 6)]),
    "itself.npz": npz(client=np.repeat(list("abcdef"), 5), edges=[("b", "b")]),
    "file": "",
    "run/config.json": "{}",
    "own/config.json": '{"algorithm": {"name": "mine"}}',
    "unnamed.py": registering("g.register.model('my-net', net)"),
    "taken.py": registering("g.register.algorithm('fedavg', net)"),
    "unread.py": registering("g.register.algorithm('own', lambda model, *, mu: model)"),
    "unrelated.py": registering(
        "g.register.relations('mine', lambda federation: 3)", "{'data.graph': 'mine'}"
    ),
    "undivided.py": registering(
        "g.register.partition('own', lambda: lambda labels, classes: [[0], [0]])",
        "{'data.name': 'custom', 'data.path': 'lacking.npz', 'data.partition': 'own'}",
    ),
    "unprivate.py": registering(
        "g.register.privacy('own', lambda: 3)", "{'privacy.name': 'own'}"
    ),
    "uncompressed.py": registering(
        "g.register.compressor('own', lambda: 3)", "{'compression.name': 'own'}"
    ),
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
    "hot.txt": "0010021895" + " 999.90" * 12 + "\n",
    "torn.txt": "0010021895  44.00  38.00  55.10\n",
    "short.txt": "0010021895" + "  44.00" * 12 + "\n",
    "again.npz": npz_twice(),
    "text.npz": npz(x=np.full((30, 2), "one")),
    "scalar.npz": npz(x=1.0, y=2.0),
    "empty.npz": npz(x=np.ones((0, 2)), y=np.arange(0), client=np.arange(0)),
    "nan.npz": npz(x=np.full((30, 2), np.nan)),
    "labels.npz": npz(y=np.full(30, 7)),
    "halves.npz": npz(y=np.arange(30) / 2),
    "gaps.npz": npz(client=np.where(np.arange(30) == 7, np.nan, 1.0)),
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
    "related.npz": npz(edges=[(0, 1)]),
    "good.csv": csv(),
    "torn.csv": csv("u,1,2,0", "v,1,2"),
    "doubled.csv": csv(header="client,a,a,y"),
    "indexed.csv": csv(header=",client,a,y"),
    "gap.csv": csv("u,1,2,0", "v,,2,0"),
    "city.csv": csv("u,1,2,0", "v,1,Oslo,0"),
    "comma.csv": csv("u,1,2,0", 'v,1,2,"1,5"'),
    "nobody.csv": csv(header="shop,a,b,y"),
    "aimless.csv": csv(header="client,a,b,c"),
    "split.csv": csv(header="client,a,split,y"),
    "featureless.csv": "client,y\nu,1\n",
    "semicolons.csv": "client;a;y\nu;1;2\n",
    "bare.csv": "client,a,y\n",
    "hollow.csv": "",
    "latin.csv": "client,a,y\nM\xfcnchen,1,2\n",
    "pairs.csv": "from,to\n0,1\n",
    "strange.csv": "from,to\nu,v\nu,x\n",
    "headless.csv": "u,v\nv,w\n",
    "wide.csv": "from,to,weight,note\nu,v,1,2\n",
    "small.csv": ",u,v\nu,0,one\nv,1,0\n",
    "void/readme.txt": "",
    "pfllib/config.json": '{"num_clients": 2}',
    "nameless/config.json": '{"clients": 2}',
    "leaf/train/a.json": '{"users": ["u"], "user_data": {"u": {"x": [[1]], "y": [0]}}}',
    "lines/train/a.json": '{"users": ["u"], "user_data": {"u": {"x": ["to be"], "y": ["o"]}}}',
    "lines/test/a.json": '{"users": ["u"], "user_data": {"u": {"x": ["or no"], "y": ["t"]}}}',
    "users/train/a.json": '{"users": ["u"]}',
    "speeds.h5": frame(),
    "zone.h5": frame(zone="UTC"),
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
    "twice/pems-bay/adj_mx_bay.pkl": matrix(["7", "7"], {"7": 0}),
    "moved/pems-bay/adj_mx_bay.pkl": matrix(["7", "8"], {"7": 1, "8": 0}),
    "off/pems-bay/adj_mx_bay.pkl": matrix(["7", "8"], {"7": 0, "8": 1}),
    "off/pems-bay/graph_sensor_locations_bay.csv": "7,37.3,-121.9\n8,-121.9,37.3\n",
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


# A command and its words, after variables of its environment. @NAME is --config of a file in
# configs/, .FIELD=VALUE is --config.FIELD=VALUE, and `NAMES` stand for several words. The error
# begins with what follows the arrow, by default with the last word, FIELD=VALUE. Checks that
# every declared setting has, such as that of its type or range, have a line each.
NAMES = {
    "VALIDATED": "@fl60 .data.val_fraction=0.2",
    "IMAGES": "@custom:fedavg .data.path=images.npz .model.name=resnet18 .model.width=8",
    "ROADS": "@pems_bay .data.source=simulated .data.sensors=6 .data.steps=100",
}
TABLE = """\
run @fl60 .round=5
run @fl60 .data.nmae=fl60
run @tpt48:fedavg .hparams.mu=0.3
run @tpt48 .hparams.embedding_lr=3
run @fl60 .hparams.attack_ratio=0.1
run @fl60 .attack.clients=3
run @fl60 .data.download=false
run @fl60 .new_clients.rounds=1
run @fl60 .new_clients.join=together
run @fl60 .new_clients.fraction=0.2 .new_clients.join=later
run @fl60:cfl .new_clients.fraction=0.2 .new_clients.join=together
run @fl60 .tuning.epochs=1
run @fl60 .defence.attackers=1
run @fl60 .data.neighbours=4
run @fl60 .hparams.client_momentum=0.9
run @fl60 .rounds=abc
run @fl60 .hparams.client_lr=x
run @tpt48 .data.download=maybe
run @fl60 .algorithm.name=fedsgd
run @fl60 .eval.points=G,Q
run @fl60 .client_chunk=-1
run @cifar10 .data.examples=-1
run @cifar10 .data.source=simulated .data.partition=iid .data.examples=5 -> data.clients=10
run @cifar10:fedfomo .data.source=simulated .data.partition=iid .data.graph=own \
.data.clients=1 .cohort_size=1 \
-> algorithm.name=fedfomo sends models of other clients, and there is one
run @fl60 .seed=-1
run @fl60 .hparams.client_lr=-0.1
run @fl60 .hparams.client_lr=nan
run @fl60 .defence.name=monotone .hparams.defence_threshold=2
run @fl60 .defence.name=monotone .hparams.defence_agreement=nan
run @fl60 .rounds=99999999999
run @fl60 .tuning.part=whole .tuning.steps=2000000000
run @custom .data.path=good.npz .data.scale_by=client -> good.npz: data.scale_by=client has \
no effect
run @fl60 .hparams.client_lr=1e300 -> hparams.client_lr=1e+300
run @fl60 .hparams.client_lr=inf
run @fl60 .seed=4294967296
run @fl60 .new_clients.fraction=inf
run @fl60 .new_clients.fraction=nan
run @fl60 .model.weights=no.pth
run @fl60:fedavg .algorithm.layer=banana
run @fl60:fedavg .client_optimizer=momentum .hparams.client_clip=0
run @fl60:fedavg .client_optimizer=momentum .hparams.client_momentum=1.5
run @fl60 .attack.name=label_flip '.attack.clients=(True,)'
run @fl60 '.model.hidden=(True,)'
run @fl60 '.model.hidden=(3.5,)'
run @fl60 '.model.hidden=((3,),)'
run @fl60 .eval.points=3
run @fl60 .metrics=f2
run @fl60 .metrics=rmse
run @tpt48 .metrics=auc .data.source=simulated -> metrics=auc
run @fl60 .precision=float8
run @fl60 .new_clients.fraction=0.2 .new_clients.rounds=1 .client_schedule=cosine .rounds=3 \
.hparams.client_horizon=3 -> client_schedule=cosine
run @fl60 --seeds=2 --distributed -> distributed=True
run @fl60 --seeds=abc -> seeds=abc is not an integer of at least 1
run @fl60 --cores=0.5 -> cores=0.5 is not an integer of at least 1
run @fl60 --seeds=0 -> seeds=0 is not an integer of at least 1
run @fl60 --report=abc -> report=abc is not true or false
run @fl60 --seeds -> seeds has no value
run @fl60 --out -> out has no value
run @fl60 --lr=0.1 -> --lr is not a flag of run; perhaps
run @fl60 .lr=0.1 -> lr=0.1 is not a field; perhaps hparams.client_lr
run @fl60 .learning_rate=0.1 -> learning_rate=0.1 is not a field; perhaps hparams.client_lr
sweep VALIDATED --grid.lr=0.1 -> lr is not a field; perhaps hparams.client_lr
sweep VALIDATED --sampler=grid -> sampler=grid is not one of random, tpe
run --resume --out=own -> own/config.json: algorithm.name=mine is unknown; choose from
run --seeds=2 --resume --out=run -> config is not set
run -> config is not set
run --config=nowhere.py .rounds=4 -> config=nowhere.py
run --config=broken.py
run --config=empty.py
run --config=number.py
run --config=unnamed.py -> register.model=my-net
run --config=taken.py -> register.algorithm=fedavg
run --config=unread.py -> register.algorithm=own
run --config=narrow.py -> register.metric=own
run --config=unrelated.py -> data.graph=mine returns a int
run --config=undivided.py -> data.partition: its function returns an index twice
run --config=unprivate.py -> privacy.name=own returns a int
run --config=uncompressed.py -> compression.name=own returns a int
run --config=lean.py -> algorithm.name=fedper
run --config=wide.py -> model.name=wide maps an example of shape (2,) to outputs of shape \
(9,), and fl60
run --config=misspelt.py -> local_step=5
run --config=kept.py -> body=BatchNorm
run @fl60 stray -> stray is not a flag
run @fl60 --nosuchflag=1 -> --nosuchflag is not a flag
run @fl60 --resum -> --resum is not a flag
run @fl60 --rounds=2 -> --rounds is not a flag
run tpt84 -> config=tpt84
run configs/fl60.py -> config=configs/fl60.py
run fl60 .algorithm.name=fedagv
run @fl60 .rounds -> config.rounds has no value
run @fl60 .rounds --resume -> config.rounds has no value
run @fl60 .rounds 1.5 -> rounds=1.5
run @fl60 --help .round=5
run @fl60 --out=file
run @fl60 --out=file/below
run @fl60 --out=run
run @fl60 --out=run --resume -> data.name=fl60
run @fl60 --resume -> resume=True
run @fl60 --resume --out= -> resume=True
run @fl60 '--out=a[1]'
run @fl60 .cohort_size=61
run @fl60 '.model.hidden=(0,)'
run @fl60 .model.name=gru
run @fl60 .new_clients.fraction=0.01
run @fl60 .new_clients.fraction=1
run @fl60 .new_clients.fraction=0.95 .cohort_size=4
run @fl60 .attack.name=label_flip .attack.clients=60 -> attack.clients has 60, which does
run @fl60 .attack.name=label_flip '.attack.clients=("Ann","Bo")' -> attack.clients has Ann, \
which does
run @fl60 .attack.name=label_flip .attack.clients=3 .hparams.attack_ratio=0.1 -> \
attack.clients=3
run @fl60 .attack.name=label_flip '.attack.clients=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, \
12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, \
35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, \
58, 59, 60)' -> attack.clients has 60, which does
run @fl60 .attack.name=label_flip '.attack.clients=("domain 3",3)' -> attack.clients has \
client 3, domain
run @fl60 .attack.name=sleeper .hparams.attack_ratio=0.1 .attack.period=50 -> \
attack.honest_rounds=50
run @fl60 .attack.name=backdoor
run @tpt48 .data.source=simulated .attack.name=label_flip_wrong
run ROADS .attack.name=label_flip
run IMAGES .attack.name=backdoor .attack.trigger_size=9
run IMAGES .attack.name=backdoor .attack.target=4
run @fl60 .defence.name=median
run @fl60:local .defence.name=clip
run @fl60:local .defence.name=monotone
run @fl60:fedproto .defence.name=monotone
run @fl60 .defence.name=krum .defence.attackers=2
run ROADS .data.steps=20 -> pems_bay: 20 steps are too
run ROADS '.model.hidden=(3,3)' -> model.hidden=(3
run ROADS .model.name=resnet18
run @fl60 .data.graph=knn .data.neighbours=60
run @fl60 .data.graph=random .data.neighbours=60
run @fl60 .data.graph=learned
run @fl60:sfl .data.graph=learned .data.neighbours=60
run @fl60:sfl .data.graph=learned .data.learned_every=0
run @fl60:sfl .data.graph=knn .data.learned_every=5
run @custom .data.name=geometric .data.clients=1000 .data.graph=none -> data.graph=none gives
run @flha_cifar10:local .data.source=simulated .data.clients=5 .cohort_size=3 .data.cap=20 \
.model.architectures=arch0,arch1,arch2 .new_clients.fraction=0.4 \
.new_clients.architectures=arch3 .new_clients.join=together -> new_clients.join=together
run @fl60:ditto .data.storage=host .new_clients.fraction=0.1 -> data.storage=host
run @fl60 .availability.name=trace -> availability.file is empty
run @fl60 .availability.name=trace .availability.file=gone.csv -> availability.file=gone.csv
run @fl60 .availability.name=trace .availability.file=good.csv -> availability.file=good.csv
run @fl60:fedavg .clock.name=devices .clock.wait_for=6
run @fl60:fedavg .clock.name=devices .hparams.deadline=5
run @fl60:fedavg .clock.name=deadline .hparams.deadline=0
run @fl60:fedavg .stragglers.name=some
run @fl60:fedavg .clock.name=devices .clock.wait_for=2 .privacy.name=central \
-> privacy.name=central
run @fl60:fedbuff .algorithm.fedbuff_concurrency=56
run @fl60:fedbuff .clock.name= -> algorithm.name=fedbuff needs
run @fl60:fedavg .data.storage=host .attack.name=label_flip .hparams.attack_ratio=0.1 -> \
data.storage=host
run @fl60:fedavg .data.storage=disk
sweep VALIDATED --grid.hparams.client_lr=0.1,0.2 .data.storage=host -> data.storage=host
sweep VALIDATED --grid.hparams.client_lr=0.1,0.2 .init_from=first
run @custom .data.path=good.npz -> algorithm.name=panacea
run @fl60 .data.source=real --data_root=none -> fl60: no file none/dg60/toy_d60_spiral.pkl
run @compcars .data.source=real --data_root=none -> compcars: no file \
none/compcars/car-images.txt
run @fl60 .data.source=file .data.path=torn.pkl -> torn.pkl: the file is not
run @fl60 .data.source=file .data.path=text.pkl -> text.pkl: the file is not
run @tpt48 .data.path=nowhere.txt
run @tpt48 .data.path=torn.txt -> torn.txt: line 1 is not
run @tpt48 .data.path=short.txt -> short.txt: the file is incomplete
run @tpt48 .data.path=hot.txt -> hot.txt: line 1: Alabama has 999.9
run @tpt48 .data.path=text.pkl -> text.pkl: line 1 is not
run @pems_bay .data.path=nowhere.h5
run @pems_bay .data.path=text.pkl -> text.pkl: the file is not
run IMAGES .model.weights=no.pth
run IMAGES .model.weights=text.pkl
run IMAGES .model.weights=no.safetensors
run @custom -> custom: data.path is empty
run @custom .data.path=nowhere.npz
run @custom .data.path=text.pkl -> text.pkl: the file is neither
run @custom .data.path=torn.npz -> torn.npz: the file is not
run @custom .data.path=objects.npz -> objects.npz: the array client cannot
run @custom .data.path=lacking.npz -> lacking.npz: there is no array
run @custom .data.path=typo.npz -> typo.npz: the array edge is
run @custom .data.path=lengths.npz -> lengths.npz: y has shape
run @custom .data.path=split.npz -> split.npz: split has tset at
run @custom .data.path=marked.npz .data.val_fraction=0.1 -> marked.npz: \
data.val_fraction=0.1 has no effect
run @custom .data.path=stranger.npz -> stranger.npz: edges: edge number 1
run @custom .data.path=itself.npz -> itself.npz: edges: edge number 0
run @fl60:fedavg '.model.hidden=(1000000,1000000)' -> model.hidden=(1000000, 1000000)
run @fl60 .algorithm.width=100000000
run @fl60:pfedhn .algorithm.embedding_dim=2000000000
run @fl60:fedavg .batch_size=2000000000
run @fl60:fedavg .local_steps=2000000000
run @compcars .data.source=simulated .data.image_size=1000000
run @chest_xray .data.source=simulated .data.image_size=1000000
run @shakespeare .data.source=simulated .data.clients=2000000000
run @shakespeare:flha-ghn .data.source=simulated -> model.name=lstm does not describe its
run @shakespeare .data.source=simulated .model.hidden= -> model.hidden=()
run @har .data.source=simulated .model.name=lstm -> model.name=lstm reads the symbols 0 to 5
run @har .data.source=real --data_root=none -> har: no file \
none/UCI HAR Dataset/train/X_train.txt
run @femnist .data.source=real --data_root=none -> femnist: no JSON file in none/femnist/train
run @mnist .data.labels=coarse
run @cifar10 .data.source=simulated .data.image_size=1000000
run @million .data.clients=500 -> eval.clients=1000 exceeds the 500 clients that train
run @million .data.clients=0
run @million .data.clients=2000000000
run @million .data.train_examples=2000000000
run @million .data.clients=2000 .data.mean_degree=-1
run @million .data.clients=2000 .data.val_fraction=0.7 -> data.val_fraction=0.7 makes 10
run @cifar10 .data.source=simulated .data.clients=2000000000
run @pems_bay .data.source=simulated .data.sensors=1000000000
run @pems_bay .data.source=simulated .data.steps=2000000000
run @pems_bay .data.path=declared.h5 -> declared.h5
run --config=raising.py
run --config=dividing.py
run --config=lacking.py
run --config=leaving.py
run --config=plain.py
run --config=plain.py:fedavg -> config=plain.py
run --config=constant.py
run --config=section.py -> data=3
run --config=nested.py -> seed.first=3
run --config=kind.py -> rounds=5
run @fl60 --out=list --resume -> list/config.json is missing or damaged
run @fl60 --out=null --resume -> null/config.json is missing or damaged
run @fl60 --out=number --resume -> number/config.json is missing or damaged
run @fl60 --out=cut --resume -> cut/config.json is missing or damaged
run @fl60 --out=flat --resume -> data.name=fl60
run @fl60 .attack.name=label_flip
run @fl60 .attack.name=label_flip .hparams.attack_ratio=0.001 -> attack.name=label_flip
run @custom .data.path=again.npz -> again.npz: the array x is
run @custom .data.path=text.npz -> text.npz: x has type <U3
run @custom .data.path=empty.npz -> empty.npz: x has shape
run @custom .data.path=scalar.npz -> scalar.npz: x has shape
run @custom .data.path=nan.npz -> nan.npz: client 0 has a
run @custom .data.path=labels.npz -> labels.npz: y has the label 7
run @custom .data.path=columns.npz -> columns.npz: y has integers of
run @custom .data.path=halves.npz .data.task=classification -> halves.npz: y of type float64
run @custom .data.path=good.npz .data.task=labels -> data.task=labels
run @custom .data.path=gaps.npz -> gaps.npz: client has 1 missing values, the first in row 7
run @custom .data.path=fractions.npz -> fractions.npz: client has type float64
run @custom .data.path=triples.npz -> triples.npz: edges has shape
run @custom .data.path=double.npz -> double.npz: edges: edge number 1
run @custom .data.path=light.npz -> light.npz: edges: edge number 0
run @custom .data.path=unequal.npz -> unequal.npz: edge_weight has shape
run @custom .data.path=pointing.npz -> pointing.npz: directed has shape
run @custom .data.path=trainless.npz -> trainless.npz: client 0 has no
run @custom .data.path=single.npz -> single.npz: client 0 has 1
run @custom .data.path=good.npz .data.partition=iid -> good.npz: data.partition divides \
examples among
run @custom .data.path=targets.npz .data.partition=iid -> targets.npz: data.partition \
divides examples by
run @custom .data.path=torn.csv -> torn.csv: row 1, counted from 0 below the header, has 3
run @custom .data.path=doubled.csv -> doubled.csv: the header has the name a 2 times
run @custom .data.path=indexed.csv -> indexed.csv: the header has a column without a name
run @custom .data.path=gap.csv -> gap.csv: column a has no value in row 1, counted from 0
run @custom .data.path=city.csv -> city.csv: column b has Oslo in row 1, counted from 0
run @custom .data.path=comma.csv -> comma.csv: column y has 1,5 in row 1, counted from 0
run @custom .data.path=nobody.csv -> nobody.csv: there is no column client; set \
--config.data.client_column to one of shop, a, b, y, or set --config.data.partition
run @custom .data.path=aimless.csv -> aimless.csv: there is no column y or target or label
run @custom .data.path=split.csv -> split.csv: split has 0 at example 0
run @custom .data.path=bare.csv -> bare.csv: there are no rows below the header
run @custom .data.path=featureless.csv -> featureless.csv: there is no column of features
run @custom .data.path=semicolons.csv -> semicolons.csv: the header has the column client;a;y
run @custom .data.path=hollow.csv -> hollow.csv: the file is empty
run @custom .data.path=latin.csv -> latin.csv: the file is no CSV file in UTF-8
run @custom .data.path=good.csv .data.target_columns=price -> good.csv: there is no column \
price; set --config.data.target_columns to one of client, a, b, y
run @custom .data.path=good.csv .data.feature_columns=a,y -> good.csv: column y is to be two
run @custom .data.path=good.csv .data.feature_columns=a,3 -> good.csv: there is no column 3
run @custom .data.path=good.npz .data.client_column=shop -> data.client_column=shop is of a
run @custom .data.path=void .data.target_columns=y,z -> data.target_columns=(y, z) is of a
run @custom .data.path=good.csv .data.edges=nowhere.csv -> data.edges=nowhere.csv is not a file
run @custom .data.path=good.csv .data.edges=strange.csv -> good.csv with strange.csv: edges: \
edge number 1, (u, x), names client x
run @custom .data.path=good.csv .data.edges=headless.csv -> headless.csv: the first row names
run @custom .data.path=good.csv .data.edges=wide.csv -> wide.csv: the file has 2 rows of 4
run @custom .data.path=good.csv .data.edges=small.csv -> small.csv: one is no number
run @custom .data.path=good.npz .data.edges=good.npz -> good.npz: the file has 3 arrays
run @custom .data.path=related.npz .data.edges=pairs.csv -> data.edges=pairs.csv: related.npz
run @custom .data.path=related.npz .algorithm.edge_weights=true -> \
algorithm.edge_weights=True needs relations with weights, and those of custom have none
run @custom .data.path=good.npz .data.images=channels_first -> data.images=channels_first is of
run @custom .data.path=void -> data.path=void is a folder with neither
run @custom .data.path=pfllib -> pfllib/train/0.npz is not a file
run @custom .data.path=nameless -> nameless/config.json: the file has no num_clients
run @custom .data.path=leaf -> leaf: 1 users, such as u, are in one of train and test
run @custom .data.path=lines -> lines: client u has train examples x of type <U5
run @custom .data.path=users -> users/train/a.json: the file has no users with x and y
run @pems_bay .data.path=zone.h5 -> zone.h5: the times have the zone UTC
run @pems_bay .data.path=seconds.h5 -> seconds.h5: row 1 is 3e-07
run @pems_bay .data.path=quarters.h5 -> quarters.h5: row 1 is 900
run @pems_bay .data.path=backwards.h5 -> backwards.h5: row 1 is not
run @pems_bay .data.path=doubled.h5 -> doubled.h5: the file is not
run @pems_bay .data.path=fast.h5 -> fast.h5: sensor 7 has the
run @pems_bay .data.path=silent.h5 -> silent.h5: sensor 7 has no
run @pems_bay .data.path=empty.h5 -> empty.h5: the file is not
run @pems_bay .data.path=speeds.h5 --data_root=none -> data.roads: no file \
none/pems-bay/adj_mx_bay.pkl
run @pems_bay .data.path=speeds.h5 --data_root=below -> \
below/pems-bay/distances_bay_2017.csv: line 2 has the
run @pems_bay .data.path=speeds.h5 --data_root=quoted -> \
quoted/pems-bay/distances_bay_2017.csv: the file is no
run @pems_bay .data.path=speeds.h5 --data_root=other -> \
other/pems-bay/distances_bay_2017.csv: line 4 has another
run @pems_bay .data.path=speeds.h5 --data_root=twice -> twice/pems-bay/adj_mx_bay.pkl: \
sensor 7 is given
run @pems_bay .data.path=speeds.h5 --data_root=moved -> moved/pems-bay/adj_mx_bay.pkl: \
sensor 7 is number 0
run @pems_bay .data.path=speeds.h5 --data_root=off -> \
off/pems-bay/graph_sensor_locations_bay.csv: line 2 has latitude -121.9
compare --config=tpt48 -> config=tpt48
compare run --seeds=3
compare run --data_root=none
compare run -> folders=run
compare run run2 --over=bytes -> over=bytes is not read
compare run run2 --plot=curves.txt -> plot=curves.txt
compare nowhere.py --methods=local -> folders=nowhere.py
compare number.py --methods=local -> folders=number.py
compare regression.py nowhere.py --methods=local -> folders=nowhere.py
compare regression.py --methods=fedsgd -> method=fedsgd
compare regression.py --methods=fedavg,fedavg -> folders=regression.py with \
methods=fedavg,fedavg
compare regression.py --methods=fedavg,fedproto -> algorithm.name=fedproto
compare regression.py --methods=fedavg --seeds=1 -> folders=regression.py has 1 run
compare regression.py --methods=fedavg --resume -> resume=True
compare regression.py --methods=fedavg --accept_changes -> accept_changes=True
compare regression.py --methods=fedavg --resume --out=typo
compare regression.py --methods=fedavg,local --out=file -> out=file
compare regression.py run/nothing --methods=fedavg -> run/nothing is not a folder
compare cars.py --methods=local,fedavg --data_root=none -> compcars: no file none
tables --datasets=fl60 --methods=fedavg '--page=file#scores' -> page=file
robustness @fl60 '--page=no.md#a' -> page=no.md
theory '--page=no.md#a' -> page=no.md
figures '--page=no.md#a' -> page=no.md
bench @fl60 '--page=no.md#a' -> page=no.md
tables --methods=local,local
tables tpt48 -> config=tpt48
figures .rounds=3 -> config.rounds=3
bench @fl60 --compilation_cache=a
theory --clients=1000000
theory --draws=99999999999999
theory .rounds=3 -> config.rounds=3
figures --figure=partition --seeds=2
figures --figure=pfedgat_3 --seeds=2
figures --figure=architectures --rounds=2
bench --suite --cores=1
bench --suite .rounds=3 -> config.rounds=3
bench @fl60 .init_from=first
soak tpt48 -> config=tpt48
sweep --config=taken.py --grid.hparams.client_lr=1 -> register.algorithm=fedavg
search -> config is not set
search @fl60:ditto -> config=configs/fl60.py:ditto
search @custom -> config=configs/custom.py has no search
search @fl60 --methods=fedsgd
search @fl60 --methods=
search @fl60 .seed=7 -> config.seed=7
search @fl60 --methods=local .hparams.client_lr=1 -> config.hparams.client_lr=1
search @fl60 --methods=local .data.val_fraction=0 -> data.val_fraction=0
search @fl60 --methods=local .algorithm.depth=2
search @tpt48 --methods=fedrod .data.source=simulated -> algorithm.name=fedrod
search @fl60 --methods=local --out=file
search @fl60 --methods=local '--page=no.md#a' -> page=no.md
robustness @fl60 --attacks=gas
robustness @fl60 --ratios=0.001,0.3
robustness @fl60 --keep=fedavg
robustness @fl60 --attacks=
robustness @fl60 --attacks=,poisoning
robustness @fl60 --methods=
robustness @fl60 --methods=fedavg,fedavg
robustness @fl60 --methods=fedsgd -> method=fedsgd
robustness @fl60 --defences=wall
robustness @fl60 --defences=clip,
robustness @fl60 --methods=fedavg --defences=none,clip --best_defences -> best_defences \
chooses by validation, and
robustness VALIDATED --methods=fedavg --defences=none,clip --best_defences --keep=sfl
robustness @fl60 --best_defences -> best_defences chooses from --defences
robustness @fl60 --choose_at=0.3
robustness @fl60 --defences=none,clip --best_defences --choose_at=0.25
robustness @fl60 --methods=panacea --defences=median -> defence.name=median makes one model \
of all uploads, and the server of algorithm.name=panacea
robustness @fl60 --methods=fedavg --attacks=poisoning,backdoor -> attack.name=backdoor
robustness @fl60 .attack.clients=3
robustness @fl60:ditto -> config=configs/fl60.py:ditto
robustness @fl60 .hparams.attack_ratio=0.3 -> config.hparams.attack_ratio=0.3
robustness @fl60 .attack.name=gas -> config.attack.name=gas
robustness @fl60 --defences=none,clip .defence.name=krum -> config.defence.name=krum
robustness @fl60 .algorithm.name=local -> config.algorithm.name=local
robustness @fl60 .seed=7 -> config.seed=7
robustness @fl60 --ratios=2
robustness @fl60 --out=file
robustness -> config is not set
robustness @fl60 --methods=fedavg .algorithm.depth=2
sweep @fl60 --grid.rounds=1,2 -> data.val_fraction=0.0
sweep VALIDATED -> the sweep has no points
sweep @fl60:ditto .data.val_fraction=0.2 --grid.algorithm=fedavg,local -> \
config=configs/fl60.py:ditto
sweep VALIDATED --grid.hparams.client_lr=0.1 --loguniform.hparams.client_lr=0.1,1 -> \
--loguniform.hparams.client_lr=0.1,1
sweep VALIDATED --grid.rounds=1 .seed=7 -> config.seed=7
sweep VALIDATED --grid.rounds=1 .rounds=2 -> config.rounds=2
sweep VALIDATED --grid.algorithm=local .algorithm.name=fedavg -> config.algorithm.name=fedavg
sweep @custom .data.path=good.npz --grid.data.root=a,b -> data.root=a
sweep @custom --grid.data.path=good.npz,split.npz -> data.path=good.npz
sweep VALIDATED .attack.name=label_flip .attack.clients=1,2 \
--grid.hparams.attack_ratio=0,0.3 -> attack.clients=1,2
sweep VALIDATED .attack.name=label_flip --grid.hparams.attack_ratio=0,0.001 -> \
attack.name=label_flip
sweep VALIDATED --grid.hparams.client_lr=a,b -> hparams.client_lr=a
sweep VALIDATED --grid.hparams.client_lr=-1 -> hparams.client_lr=-1.0
sweep VALIDATED .attack.name=noise --grid.hparams.attack_ratio=0.001,0.3 -> attack.name=noise
sweep VALIDATED --grid.local_steps=99999999999 -> local_steps=99999999999
sweep VALIDATED --grid.hparams.mu=0.1 -> hparams.mu=0.1
sweep VALIDATED --grid.algorithm=fedsgd -> method=fedsgd
sweep VALIDATED --grid.local_steps=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21 -> \
21 groups of trials differ
sweep VALIDATED --points=nowhere.py
sweep VALIDATED --points=empty.py
sweep VALIDATED --points=raising.py
sweep VALIDATED --points=listed.py -> algorithm.name=[fedavg
sweep VALIDATED --points=methods.py -> method=[fedavg]
sweep VALIDATED --points=a.py --samples=3 -> points=a.py
sweep VALIDATED --grid.rounds=1 --resume -> resume=True
sweep VALIDATED --grid.rounds= -> --grid.rounds=
sweep VALIDATED --grid.rounds=1 --sampler=tpe -> samples=0
sweep VALIDATED --grid.hparams.mu=1 --sampler=tpe --samples=2 -> hparams.mu=1.0
sweep VALIDATED --grid.algorithm=local,fedavg --sampler=tpe --samples=2 .hparams.client_lrr=9
sweep VALIDATED --grid.algorithm=local,fedavg --sampler=tpe --samples=2 \
.attack.name=label_flip --uniform.hparams.attack_ratio=0,0.001 -> attack.name=label_flip
sweep VALIDATED --grid.rounds=1 --sampler=tpe --samples=2 --shard=1/2 --out=new -> shard=1/2
sweep VALIDATED --grid.rounds=1 --shard=1/2 --out=new --keep_best=1
sweep VALIDATED --grid.rounds=1 '--out=a[1]' --keep_best=1 -> out=a[1]/best/run
sweep VALIDATED --grid.rounds=1 --shard=3/2
sweep VALIDATED --grid.rounds=1 --shard=one
sweep VALIDATED --grid.rounds=1 --shard=1/2
sweep VALIDATED --grid.rounds=1 --shard=1/2 --out=new -> shard=1/2
sweep VALIDATED --grid.rounds=1 --batch=8
sweep VALIDATED --grid.rounds=1,2 --pruner=asha --seeds=2 -> seeds=2
sweep VALIDATED --grid.rounds=1,2 --pruner=asha --launcher=ray -> launcher=ray
sweep VALIDATED --grid.rounds=1,2 --pruner=asha -> eval_every=
sweep VALIDATED .eval_every=1 --pruner=asha \
--grid.data.name=fl60,fl60_paper_formula -> data.name cannot
sweep VALIDATED --grid.rounds=1 --array=slurm --out=new -> array=slurm and tasks=None
sweep VALIDATED --grid.rounds=1 --tasks=2 --out=new -> array=None and tasks=2
sweep VALIDATED --grid.rounds=1 --array=slurm --tasks=1 -> array=slurm needs
sweep VALIDATED --grid.rounds=1 --array=slurm --tasks=2 --out=new -> tasks=2 exceeds the number
sweep VALIDATED --grid.rounds=1 --array=slurm --tasks=1 --out=new --shard=1/2 -> shard=1/2
sweep VALIDATED --grid.rounds=1 --array=slurm --tasks=1 --out=new --sampler=tpe --samples=2 \
-> array=slurm cannot
sweep VALIDATED --grid.rounds=1 --ray_address=host:1
run @fl60 --seeds=2 --resume --out=typo
sweep VALIDATED --grid.rounds=1,2 .eval.points=G,L
sweep VALIDATED --grid.rounds=1,2 .eval.splits=test
sweep VALIDATED --points=points.py .local_steps=3 -> config.local_steps=3
sweep VALIDATED --points=points.py .algorithm.name=ditto -> config.algorithm.name=ditto
sweep @fl60:ditto .data.val_fraction=0.2 --points=points.py -> config=configs/fl60.py:ditto
sweep VALIDATED --grid.algorithm=local,fedavg --sampler=tpe --samples=2 \
--grid.data.name=fl60,fl60_paper_formula -> data.name=fl60,fl60_paper_formula
tables --datasets=pems_bay --methods=local --data_root=none -> pems_bay: no file \
none/pems-bay/pems-bay.h5
figures --figure=panacea_fig2 --data_root=none -> pems_bay: no file none/pems-bay/pems-bay.h5
soak --data_root=a
theory --data_root=a
JAX_PLATFORMS=cuda run @fl60 -> JAX_PLATFORMS=cuda
JAX_PLATFORMS=abacus run @fl60 -> JAX_PLATFORMS=abacus
LC_ALL=C PYTHONUTF8=0 run @fl60 '--out=ü' -> out=
"""


class Row(NamedTuple):
    """A bad input, and how the one line on stderr begins, without quotation marks."""

    command: str
    words: list[str]
    environment: dict[str, str]
    start: str


def row_of(line: str) -> Row:
    """The row that a line of `TABLE` states."""
    text, _, start = line.partition(" -> ")
    for name, words in NAMES.items():
        text = text.replace(name, words)
    words = shlex.split(text)
    environment = {}
    while words[0][0].isupper():
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    command, *words = words
    words = [_word(word) for word in words]
    return Row(command, words, environment, start or _stated(words[-1]))


def _word(short):
    """A word of the command line."""
    if short.startswith("@"):
        file, colon, method = short[1:].partition(":")
        return f"--config={ROOT}/configs/{file}.py{colon}{method}"
    return f"--config{short}" if short.startswith(".") else short


def _stated(word):
    """The field and the value of a word, as errors state them."""
    return word.removeprefix("--").removeprefix("config.").replace("'", "")


def rows() -> dict[str, Row]:
    """The table, by its lines."""
    return {line: row_of(line) for line in TABLE.splitlines()}
