"""Own parts: registered, refused, and in every command."""

import functools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphfl_jax as g
from graphfl_jax import register, testing
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.build import arrange
from graphfl_jax.commands.common.configuration import contents_of
from graphfl_jax.configs.fields import field_names
from graphfl_jax.data import label_skew
from graphfl_jax.data.federation import with_graph
from graphfl_jax.data.relations import from_edges
from graphfl_jax.metrics import METRICS
from graphfl_jax.models import MODELS
from graphfl_jax.models.mlp import mlp
from graphfl_jax.settings import Choice, Integer, Real
from graphfl_jax.testing.checks import all_floats_are_read
from graphfl_jax.testing.subject import Subject
from graphfl_jax.trainers import Train
from graphfl_jax.wire.accounting import FACTS
from graphfl_jax.wire.privacy import ByClient, ByServer
from tests.commands import ENVIRONMENT, command, launched, scripted
from tests.federations import small_config, two_clusters
from tests.runs.test_compare import GRAPHFL

PAGE = Path(__file__).parents[2] / "docs/guide/own-parts.md"
SIZES = ["--config.rounds=2", "--config.eval_every=2", "--config.local_steps=2"]


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    """What a test registers is forgotten."""
    monkeypatch.setattr(register, "REGISTERED", dict(register.REGISTERED))
    kept = {kind: dict(registry) for kind, registry in register.REGISTRIES.items()}
    yield
    for kind, registry in register.REGISTRIES.items():
        registry.clear()
        registry.update(kept[kind])


def command_of_page(begin):
    """The words after "graphfl NAME" of the only command of the page that begins so."""
    (line,) = re.findall(rf"^graphfl {begin}.*$", PAGE.read_text(), re.MULTILINE)
    return shlex.split(line)[2:]


@pytest.fixture
def folder(tmp_path):
    """A folder with the file of the page."""
    (content,) = re.findall(r"^```python\n(from typing.*?)^```", PAGE.read_text(), re.S | re.M)
    (tmp_path / "my.py").write_text(content)
    return tmp_path


# ------------------------------------------------------------------------------- registration


def own(model, train: Train, *, own_mu: Annotated[float, Real("Weight.")] = 0.1):
    return fedavg(model, train)


def test_a_function_is_registered_again_and_another_is_refused():
    def made():
        def part(outputs, y, real):
            return 0.0

        return part

    first, second = made(), made()
    register.metric("part", first)
    register.metric("part", second)  # the same function of a cell that ran again
    assert METRICS["part"] is second
    with pytest.raises(ValueError, match="^register.metric=part is already the name of .*made"):
        register.metric("part", lambda outputs, y, real: 1.0)
    assert METRICS["part"] is second


def trainless(model, *, own_steps):
    return model


def default_outside(model, *, own_mu: Annotated[float, Real("Weight.", high=1.0)] = 3.0):
    return model


def without_default(model, *, own_steps: Annotated[int, Integer("Steps.")]):
    return model


def of_a_graph(*, seed, graph: Annotated[str, Choice("Kind.", ("ring", "line"))] = "ring"):
    return seed


def text_annotation(model: "Nowhere"):  # noqa: F821
    return model


def of_steps(*, lr, steps: Annotated[int, Integer("Steps.")] = 3):
    return optax.sgd(lr)


def with_mu(*, inputs, outputs, task, mu: Annotated[float, Real("Weight.")] = 0.1):
    return None


@pytest.mark.parametrize(
    "kind, name, function, message",
    [
        ("metric", "auc", lambda a, b, c: 0, "auc is a name of .*; choose another .* own_auc$"),
        ("algorithm", "fedavg", own, "fedavg is a name of graphfl_jax; choose another name"),
        ("algorithm", "panacea_gn", own, "panacea_gn is a name of graphfl_jax; choose anoth"),
        ("algorithm", "my-prox", own, "my-prox is not an identifier; choose a name of letters"),
        ("model", "", own, " is not an identifier; choose a name of letters"),
        ("model", 3, own, "3 is not an identifier; choose a name of letters"),
        ("model", "net", 3, "net is given a int; give it a function"),
        (
            "model",
            "net",
            with_mu,
            "net: 'mu' is a float of algorithm.name=fedprox too, and both",
        ),
        ("model", "net", lambda x: x, "net: 'x' is neither declared nor one of those"),
        ("dataset", "shops", lambda x: x, "shops: 'x' is neither declared nor one of those"),
        (
            "dataset",
            "shops",
            lambda **rest: 0,
            "shops: [*][*]rest cannot be filled by name; give",
        ),
        ("algorithm", "a", trainless, "a: 'own_steps' is neither declared nor one of those"),
        (
            "algorithm",
            "a",
            default_outside,
            r"a: the default 3.0 of 'own_mu' .*\[0, 1\].; give",
        ),
        (
            "optimizer",
            "sgd",
            lambda *, lr: 0,
            "sgd is a name of .*; choose another .* own_sgd$",
        ),
        ("optimizer", "o", lambda rate: 0, "o: 'rate' is neither declared nor .* .lr.; give"),
        ("optimizer", "o", lambda: 0, "o: it takes none of lr; give"),
        ("optimizer", "o", of_steps, "o: the setting 'steps' is no float; give"),
        ("dataset", "d", of_a_graph, "d: 'graph' is a field of all configurations; give"),
        (
            "relations",
            "knn",
            lambda federation: 0,
            "knn is a name of .*; choose another .* own",
        ),
        ("relations", "r", lambda *, seed: 0, "r: it takes none of federation; give it a sig"),
        (
            "relations",
            "r",
            lambda federation, reach: 0,
            "r: 'reach' is neither declared nor",
        ),
        ("partition", "iid", lambda *, seed: 0, "iid is a name of graphfl_jax; choose another"),
        ("partition", "p", lambda *, labels: 0, "p: 'labels' is neither declared nor one of"),
        ("partition", "p", of_a_graph, "p: 'graph' is a field of all configurations; give it"),
        ("privacy", "local", lambda: 0, "local is a name of graphfl_jax; choose another name"),
        ("privacy", "p", lambda *, clip: 0, "p: 'clip' is neither declared nor one of those"),
        ("algorithm", "a", without_default, "a: the setting 'own_steps' has no default; give"),
        ("algorithm", "a", text_annotation, "a: its annotations cannot be read .*Nowhere"),
        ("algorithm", "a", lambda: 0, "a: it takes none of model, models; give it a signature"),
        (
            "metric",
            "m",
            lambda outputs, y: 0,
            "m: it does not take three arguments .*; give it",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(kind, name, function, message):
    before = dict(register.REGISTRIES[kind])
    with pytest.raises(ValueError, match=f"^register.{kind}={message}") as refused:
        getattr(register, kind)(name, function)
    assert "\n" not in str(refused.value)
    assert register.REGISTRIES[kind] == before


def test_settings_of_an_own_method_are_fields_that_are_checked():
    register.algorithm("own", own)
    config = small_config("own", hparams__own_mu=0.5)
    assert config.hparams.own_mu == 0.5
    with pytest.raises(ValueError, match="^hparams.own_mu=-1.0 must be finite and at least 0"):
        small_config("own", hparams__own_mu=-1.0)


@pytest.mark.slow
def test_run_takes_parts_by_name_and_as_functions(shared_programs):
    config = small_config("fedavg", rounds=1, eval_every=1)

    def small(*, inputs, outputs, task):
        return mlp(inputs=inputs, outputs=outputs, task=task, hidden=(3,))

    result = g.run(config, two_clusters(), model=small, algorithm="local")
    assert result.results["algorithm"] == "local" and MODELS["small"] is small
    assert Path(__file__).name in result.results["identity"]["callables"]
    with pytest.raises(ValueError, match="^algorithm.name='fedsgd' is unknown"):
        g.run(config, two_clusters(), algorithm="fedsgd")
    with pytest.raises(ValueError, match="^register.model=<lambda> is not an identifier"):
        g.run(config, two_clusters(), model=lambda *, inputs, outputs, task: None)
    with pytest.raises(ValueError, match="^register.model=partial is given a partial; give it"):
        g.run(config, two_clusters(), model=functools.partial(small, task=None))


# ----------------------------------------------------------------- relations and partitions


def ring(federation, *, reach: Annotated[int, Integer("Reach.")] = 1):
    number = len(federation.clients)
    edges = [(i, (i + step) % number) for i in range(number) for step in range(1, reach + 1)]
    return with_graph(federation, from_edges(number, edges))


def test_relations_of_the_user_replace_those_of_the_data():
    before = field_names()
    register.relations("ring", ring)
    assert field_names() - before == {"data.reach"}
    config = small_config("fedavg", data__graph="ring", data__reach=2)
    related = arrange(config, two_clusters())
    graph, number = related.data.graph, len(related.clients)
    steps = {*((graph.senders - graph.receivers) % number).tolist()}
    assert steps == {1, 2, number - 1, number - 2}
    assert related.sha256 != two_clusters().sha256
    with pytest.raises(ValueError, match="^data.reach=3 is not read by .*data.graph=ring"):
        small_config("fedavg", data__reach=3)


@pytest.mark.parametrize(
    "relate, message",
    [
        (
            lambda federation: federation.data.graph,
            "^data.graph='r' returns a GraphsTuple; r",
        ),
        (
            lambda federation: with_graph(federation, from_edges(3, [(0, 1)])),
            "^two_clusters: a graph has 3 clients and the data have 7; give a graph of all",
        ),
    ],
)
def test_relations_that_are_none_are_refused(tmp_path, relate, message):
    register.relations("r", relate)
    with pytest.raises(ValueError, match=message):
        g.run(small_config("fedavg", data__graph="r"), two_clusters(), out=tmp_path / "out")
    assert not any(tmp_path.iterdir())


def in_order(*, clients: Annotated[int, Integer("Clients.")] = 10):
    return lambda labels, classes: np.array_split(np.argsort(labels), clients)


def test_a_partition_of_the_user_divides_examples(tmp_path):
    register.partition("in_order", in_order)
    x, y = np.arange(120.0).reshape(60, 2), np.arange(60) % 3
    np.savez(tmp_path / "examples.npz", x=x, y=y)
    settings = {
        "data.name": "custom",
        "data.path": str(tmp_path / "examples.npz"),
        "data.partition": "in_order",
        "data.clients": 3,
    }
    made = g.federation(g.configs.configure("fedavg", "custom", settings=settings))
    labels = made.data.train.y.reshape(3, -1)
    assert [{*of_client} for of_client in labels.tolist()] == [{0}, {1}, {2}]
    fields = g.configs.configure(
        "fedavg", "fashion_mnist", settings={"data.partition": "in_order"}
    )
    assert fields.data.clients == 10 and "classes_per_client" not in fields.data


@pytest.mark.parametrize(
    "partition, what",
    [
        (None, "no list of integer arrays"),
        (lambda labels, classes: np.zeros((2, 3), int), "no list of integer arrays"),
        (lambda labels, classes: [], "no list of integer arrays"),
        (lambda labels, classes: [np.array([0.5, 1.5])], "no list of integer arrays"),
        (lambda labels, classes: [[0, 1], [2, 60]], "an index of no example"),
        (lambda labels, classes: [[0, 1], [-1]], "an index of no example"),
        (lambda labels, classes: [[0, 1], [2, 1]], "an index twice"),
    ],
)
def test_a_partition_that_divides_nothing_is_refused(partition, what):
    with pytest.raises(ValueError, match=f"^data.partition: its function returns {what}.*60,"):
        label_skew.divide(partition, np.arange(60) % 3, 3, seed=0)


# ------------------------------------------------------------------------------------ privacy


def halved_means(*, half_size: Annotated[float, Real("Size.")] = 0.5):
    def mean(updates, present, m, key):
        return half_size / m * jnp.where(present[:, None], updates, 0.0).sum(axis=0)

    return ByServer(mean)


def test_a_run_with_a_privacy_of_the_user_says_that_epsilon_is_not_known():
    register.privacy("halved", halved_means)
    config = small_config("fedavg", privacy__name="halved", rounds=1, eval_every=1)
    assert "privacy_delta" not in config.hparams and "accountant" not in config.privacy
    result = g.run(config, two_clusters())
    assert result.results["privacy"] == dict.fromkeys(FACTS) | {"name": "halved"}
    assert result.results["hparams"]["half_size"] == 0.5 and not result.results["diverged"]


@pytest.mark.parametrize(
    "factory, message",
    [
        (
            lambda: abs,
            "returns a builtin_function_or_method; return a ByClient or a ByServer of",
        ),
        (
            lambda: ByClient(lambda update, key: update.sum()),
            r"returns an array \[\] in place",
        ),
        (
            lambda: ByServer(lambda updates, *rest: updates),
            r"returns an array \[4, \d+\] in p",
        ),
    ],
)
def test_a_privacy_that_is_none_is_refused(tmp_path, factory, message):
    register.privacy("p", factory)
    config = small_config("fedavg", privacy__name="p")
    with pytest.raises(ValueError, match=f"^privacy.name='p' {message}"):
        g.run(config, two_clusters(), out=tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_privacy_by_the_server_needs_one_that_averages_and_no_defence():
    register.privacy("halved", halved_means)
    for method, fields, message in (
        ("panacea", {}, "privacy.name='halved' needs a server that averages"),
        ("fedavg", {"defence__name": "median"}, "defence.name='median' .* privacy.name=halved"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            g.run(small_config(method, privacy__name="halved", **fields), two_clusters())


def test_a_compressor_that_is_none_is_refused():
    register.compressor("none", lambda: abs)
    with pytest.raises(ValueError, match="^compression.name='none' returns a .*; return a"):
        g.run(small_config("fedavg", compression__name="none"), two_clusters())


# ----------------------------------------------------------------------- the file of the page


def test_the_file_of_the_page_runs(folder):
    begin = "run my.py:fedavg --config.model"
    words = [*command_of_page(begin), "--config.data.shops=4", *SIZES]
    ended = launched("run", *words, "--out=here", cwd=folder)
    assert ended.status == 0, ended.stderr
    results = json.loads((folder / "here/results.json").read_text())
    assert results["dataset"]["name"] == "shops" and results["algorithm"] == "fedavg"
    assert len(results["metrics"]["P"]["certainty"]["per_client"]) == 4
    assert results["identity"]["callables"].keys() == {"my.py"}
    assert "certainty" in ended.stdout and "balanced_accuracy" in ended.stdout


@pytest.mark.slow
def test_what_happens_to_uploads_on_the_page_changes_a_run(folder):
    """Each changes the scores, and the compressor the bytes."""
    words = ["my.py:fedavg", "--config.rounds=2", "--config.local_steps=2"]
    results, printed = [], {}
    for name, part in {
        "none": [],
        "compressor": [
            "--config.compression.name=rounded",
            "--config.hparams.rounded_step=0.1",
        ],
        "privacy": ["--config.privacy.name=laplace", "--config.hparams.laplace_scale=0.1"],
        "attack": ["--config.attack.name=doubled", "--config.hparams.attack_ratio=0.5"],
        "defence": ["--config.defence.name=signs"],
    }.items():
        ended = launched("run", *words, *part, f"--out={name}", cwd=folder)
        assert ended.status == 0, ended.stderr
        printed[name] = ended.stdout
        results.append(json.loads((folder / name / "results.json").read_text()))
    losses = {result["scores"]["validation"]["G"]["loss"] for result in results}
    assert len(losses) == 5
    assert results[2]["privacy"] == dict.fromkeys(FACTS) | {"name": "laplace"}
    assert "laplace privacy of clients: no accountant knows its epsilon" in printed["privacy"]
    sent = [result["communication"]["up_bytes"] for result in results]
    floats = sent[0] // 4
    assert sent == [4 * floats, round(2 * floats + 4), *[4 * floats] * 3]


def test_a_defence_that_returns_no_updates_is_refused_in_one_line(folder):
    (folder / "my.py").write_text(
        (folder / "my.py").read_text()
        + "\ng.register.defence('short', lambda: None)\n".replace(
            "lambda: None", "short"
        ).replace("\ng.", "\ndef short():\n    return lambda updates: updates[0]\n\n\ng.")
    )
    words = ["my.py:fedavg", "--config.rounds=2", "--config.defence.name=short"]
    ended = launched("run", *words, cwd=folder)
    assert ended.status == 2 and ended.stderr.count("\n") == 1
    assert "defence.name='short' returns an array [" in ended.stderr


def test_help_lists_the_settings_of_the_file_of_the_page(folder):
    ended = launched("run", *command_of_page("run my.py --config.hparams.myprox"), cwd=folder)
    assert ended.status == 0, ended.stderr
    for field, value in (("hparams.myprox_mu", "0.5"), ("data.shops", "12")):
        assert re.search(rf"^ *{field} +. {value} ", ended.stdout, re.MULTILINE), field


MINE = """
import graphfl_jax as g
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.trainers import Train

def mine(model, train: Train):
    return fedavg(model, train)

g.register.algorithm("mine", mine)
"""


@pytest.mark.slow
def test_models_of_own_parts_are_read_with_the_file_that_registers_them(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    contents_of("config", str(file))
    config = small_config("mine", rounds=1, eval_every=1)
    g.run(config, two_clusters(), out=tmp_path / "run")
    x = np.array([[0.5, -0.5], [-1.0, 0.25]])
    np.savez(tmp_path / "new.npz", x=x)
    client = ["run", "--client=client 2"]
    export = ["export", *client, "--to=one.safetensors"]
    predict = ["predict", *client, "--data=new.npz", "--to=out.npz"]
    for words, error in (
        (
            export,
            "algorithm.name='mine' is unknown; .*import your module before, or name it by",
        ),
        ([*predict, "--config=tpt48"], "config=tpt48 is not a file; choose a Python file"),
        (
            [*predict, "--config=mine.py", "--config.rounds=3"],
            "config.rounds=3 is not read, since saved models have their configuration; leave",
        ),
    ):
        ended = scripted(GRAPHFL, *words, cwd=tmp_path)
        assert ended.status == 2 and re.match(f"error: .*{error}", ended.stderr), ended.stderr
    for words in (export, predict):
        ended = scripted(GRAPHFL, *words, "--config=mine.py", cwd=tmp_path)
        assert (ended.status, ended.stderr) == (0, "")
    expected = g.load(tmp_path / "run").predict("client 2", x)["outputs"]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["outputs"], expected)
    alone = g.load(tmp_path / "one.safetensors").predict("client 2", x)["outputs"]
    np.testing.assert_array_equal(alone, expected)


@pytest.mark.release
def test_the_file_of_the_page_is_swept(folder):
    words = [*command_of_page("sweep my.py --grid.algorithm"), *SIZES, "--out=here"]
    ended = launched("sweep", *words, cwd=folder)
    assert ended.status == 0, ended.stderr
    (board,) = json.loads((folder / "here/leaderboard.json").read_text())
    lines = (folder / "here/trials.jsonl").read_text().splitlines()
    runs = [json.loads(line) for line in lines]
    assert board["data"] == "shops" and len(runs) == 8
    best = board["rows"][0]
    own = [run["metrics"]["P"] for run in runs if run["point"] == best["point"]]
    for name in ("certainty", "balanced_accuracy"):
        mean = np.mean([metrics[name]["mean"] for metrics in own])
        assert len(own) == 2 and best[f"test_{name}"] == pytest.approx(mean)
    head = (folder / "here/leaderboard.md").read_text().splitlines()[2]
    assert head.endswith("| test | test balanced accuracy | test certainty |")


@pytest.mark.release
def test_methods_are_compared_on_the_file_of_the_page(folder):
    path = folder / "my.py"
    path.write_text(path.read_text().replace('"rounds": 20', '"rounds": 2'))
    (folder / "other.py").write_text(
        "import graphfl_jax as g\n"
        "def get_config(method):\n"
        "    settings = {'local_steps': 2, 'rounds': 2}\n"
        "    return g.configs.configure(method, 'fl60', settings=settings)\n"
    )
    _, *words = command_of_page("compare")
    words = ["my.py", "other.py", *words, "--seeds=1", "--to=both.json"]
    ended = scripted(GRAPHFL, "compare", *words, cwd=folder)
    assert ended.status == 0, ended.stderr
    settings = json.loads((folder / "both.json").read_text())["settings"]
    methods = [(setting["data"], setting["method"]) for setting in settings]
    assert methods == [
        ("shops", "myprox"),
        ("shops", "panacea"),
        ("fl60", "myprox"),
        ("fl60", "panacea"),
    ]
    assert {*settings[0]["metrics"]} == {"certainty", "balanced_accuracy"}


@pytest.mark.release
def test_the_file_of_the_page_is_swept_on_ray(folder, monkeypatch):
    pytest.importorskip("ray", reason="Ray, an extra, is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        words = [*command_of_page("sweep my.py --grid.hparams"), *SIZES, "--out=here"]
        words += [f"--ray_address={nodes.address}"]
        ended = subprocess.run(
            command("sweep", *words), env=ENVIRONMENT, cwd=folder, capture_output=True
        )
    finally:
        nodes.shutdown()
    assert ended.returncode == 0, ended.stderr
    lines = (folder / "here/trials.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert len(found) == 3 and {line["algorithm"] for line in found} == {"myprox"}
    assert all("my.py" in line["identity"]["callables"] for line in found)


# ----------------------------------------------------------------------------- check_algorithm


@pytest.mark.slow
def test_the_checks_are_imported_when_they_are_used(tmp_path):
    script = (
        "import sys, graphfl_jax as g; before = 'graphfl_jax.testing' in sys.modules; "
        "print(before, g.testing.check_algorithm.__name__, 'testing' in dir(g))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, cwd=tmp_path, capture_output=True
    )
    assert ended.stdout == b"False check_algorithm True\n", ended.stderr


@pytest.mark.slow
def test_check_algorithm_names_what_fails(monkeypatch):
    """A method whose metric depends on the rows of padding."""

    def careless(model, train: Train):
        def local(w, memory, data, key):
            trained, metrics = train(model.objective, w, data.train, key)
            return memory, trained, metrics | {"loss": data.train.x.mean()}

        return fedavg(model, train).replacing(local=local)

    register.algorithm("careless", careless)
    own = ("a_round_keeps_the_shape_of_the_state", "values_of_padding_change_nothing")
    chosen = [check for check in testing.CHECKS if check.__name__ in own]
    monkeypatch.setattr(testing, "CHECKS", chosen)
    lines = []
    message = "^careless fails 1 of 2 checks: values_of_padding_change_nothing$"
    with pytest.raises(AssertionError, match=message):
        testing.check_algorithm("careless", settings={"local_steps": 2}, report=lines.append)
    assert lines[0].startswith("passed    a round keeps") and lines[1].startswith("failed  ")
    with pytest.raises(ValueError, match="^name='fedsgd' is unknown; perhaps fed"):
        testing.check_algorithm("fedsgd")


def decayed(model, train: Train, *, decay: Annotated[float, Real("Weight.")] = 1e-4):
    """FedAvg with a penalty on the squares of the parameters."""

    def local(w, memory, data, key):
        def penalised(w, batch, key):
            squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(w))
            return model.objective(w, batch, key) + decay * squares

        trained, metrics = train(penalised, w, data.train, key)
        return memory, trained, metrics

    return fedavg(model, train).replacing(local=local)


@pytest.mark.slow
def test_a_float_that_a_method_takes_and_ignores_is_named():
    register.algorithm("own", own)
    register.algorithm("decayed", decayed)
    all_floats_are_read(Subject("decayed"))
    with pytest.raises(AssertionError, match="^own_mu is not read$"):
        all_floats_are_read(Subject("own"))


@pytest.mark.release
def test_an_own_method_passes_all_checks():
    register.algorithm("decayed", decayed)
    lines = []
    testing.check_algorithm("decayed", report=lines.append)
    assert len(lines) == len(testing.CHECKS)
    assert not [line for line in lines if not line.startswith("passed")]
    assert "decayed" in ALGORITHMS


def test_a_file_imports_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_mine.py").write_text("rounds = 7\n")
    file = tmp_path / "mine.py"
    file.write_text("from neighbour_of_mine import rounds\n")
    assert contents_of("config", str(file))["rounds"] == 7


@pytest.mark.parametrize(
    "returned, message",
    [
        (lambda memory, upload, metrics: (memory, upload), "returns 2 values; return three: "),
        (lambda memory, upload, metrics: metrics, "returns dict; return three: "),
        (
            lambda memory, upload, metrics: (memory, upload, {}),
            "returns no 'loss'",
        ),
        (
            lambda memory, upload, metrics: (upload, upload, metrics),
            "returns a memory with",
        ),
        (lambda memory, upload, metrics: (memory, (), metrics), "returns an upload with"),
    ],
)
def test_a_local_that_returns_something_else_is_named(tmp_path, returned, message):
    def own(model, *, train: Train):
        method = fedavg(model, train)
        local = method.clients[0].local
        return method.replacing(local=lambda *given: returned(*local(*given)))

    config = small_config("fedavg", rounds=1)
    place = r"\(.*test_own_parts.py, line \d+\)"
    with pytest.raises(ValueError, match=rf"^local {place} {message}"):
        g.run(config, two_clusters(), algorithm=own, out=tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["a", None, 1j])
def test_a_metric_that_returns_no_number_is_named(tmp_path, value):
    register.metric("odd", lambda outputs, y, real: value)
    config = small_config("fedavg", rounds=1, metrics=("odd",))
    with pytest.raises(ValueError, match=r"^metrics=odd returns .*, which is no real number"):
        g.run(config, two_clusters(), out=tmp_path / "out")
    assert not any(tmp_path.iterdir())


def scaled(*, lr, factor: Annotated[float, Real("Factor on the rate.")] = 2.0):
    return optax.sgd(lr * factor)


@pytest.mark.slow
def test_an_optimiser_trains_clients_with_its_floats_and_a_schedule():
    """Twice the rate by a factor is twice the rate."""
    register.optimizer("scaled", scaled)
    common = {"rounds": 2, "eval_every": 2, "client_schedule": "exponential"}
    fields = {"client_optimizer": "scaled", "hparams__client_lr": 0.02}
    found = g.run(small_config("fedavg", **common, **fields), two_clusters())
    assert found.results["hparams"]["client_factor"] == 2.0
    expected = g.run(small_config("fedavg", **common, hparams__client_lr=0.04), two_clusters())
    for result in (found, expected):
        assert not result.results["diverged"]
    np.testing.assert_allclose(found.final["test"]["P"], expected.final["test"]["P"], rtol=1e-5)


def test_an_optimiser_that_is_none_is_refused():
    register.optimizer("none", lambda *, lr: lr)
    with pytest.raises(ValueError, match="^client_optimizer='none' returns a float; return an"):
        g.run(small_config("fedavg", client_optimizer="none"), two_clusters())
