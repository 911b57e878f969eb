"""The models of a run, loaded to predict: without the run's data and its compiled program."""

import functools
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from graphfl_jax import tree
from graphfl_jax.build import assemble
from graphfl_jax.configs.values import change, configuration, current_values, values_of
from graphfl_jax.core import Params, Predictor
from graphfl_jax.data.federation import check_finite
from graphfl_jax.devices import fill_up
from graphfl_jax.program import Program, with_products
from graphfl_jax.runs import models
from graphfl_jax.runs.checkpoint import write_bytes
from graphfl_jax.runs.folder import results_in
from graphfl_jax.runs.models import GroupOfModels
from graphfl_jax.settings import perhaps

# Parts of a configuration that predictions do not need.
UNUSED = {"attack.name": "", "defence.name": "", "eval.points": (), "eval.splits": ()}
# Of the files that one client's model leaves in, with the packages that write them.
ENDINGS = {".safetensors": "", ".pt2": "torch", ".onnx": "torch onnxscript"}
EXAMPLES = 5  # with which a program is compared


def load(path: str | os.PathLike) -> "Fleet":
    """Loads the models of a run.

    Args:
      path: folder of the run, or a file of models, such as `Fleet.export` writes.

    Raises:
      ValueError: the folder holds no models, or the file is damaged or of something else.
      FileNotFoundError: there is no such folder or file.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give the folder of a run, or a file of models"
        )
    if not path.is_dir():
        return Fleet(path)
    if (path / models.FILE).is_file():
        return Fleet(path / models.FILE)
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} holds no run; give the folder of a run, or a file of models")
    results = results_in(path, {"diverged": bool})
    if results and results["diverged"]:
        raise ValueError(
            f"{path} has no {models.FILE}, since its run diverged; make another run with lower "
            "learning rates"
        )
    raise ValueError(
        f"{path} has no {models.FILE}; finish the run with graphfl run --out={path} --resume, "
        f"and add --save_models if its models have more than {models.LARGEST // 10**6} MB"
    )


class Fleet:
    """The models of all clients of a run.

    Attributes:
      clients: their names.
      facts: the metadata of the file, see `models.facts_of`.
    """

    def __init__(self, path: Path):
        self.path = path
        self.facts, tensors = models.read(path)
        try:
            # Own metrics may be functions that are not here.
            fields = current_values(self.facts["config"] | {"metrics": ()})
            unused = dict(UNUSED)
            if "model.weights" in fields:
                unused["model.weights"] = ""
            self.config = change(configuration(fields), unused)
            self.experiment = assemble(self.config, models.placeholder(self.facts))
        except ValueError as error:
            raise ValueError(
                f"{path}: {error}; if you registered it, import your module before, or name it "
                f"by --config=my.py"
            ) from error
        self.batch_size = int(fields["eval_batch_size"])
        self.groups = self._groups(tensors)
        there = {name for group in self.groups for name in group.clients}
        self.clients = tuple(name for name in self.facts["clients"] if name in there)

    def __repr__(self) -> str:
        return f"<Fleet: models of {len(self.clients)} clients in {self.path}>"

    def params(self, client: str, at: str = "P") -> Params:
        """The parameters of a client's model: a tree of NumPy arrays.

        Args:
          client: its name.
          at: "P", the predictor of the method, or "G", the model that the server sends.

        Raises:
          ValueError: there is no such client or point.
        """
        return self.predictor(client, at).params

    def predictor(self, client: str, at: str = "P") -> Predictor:
        """The parameters, and what else the method predicts with.

        Args:
          client: its name.
          at: as of `params`.
        """
        group, row = self._place(client)
        return jax.tree.map(lambda leaf: leaf[row], self._at(group, at))

    def rounds_trained(self, client: str) -> int | None:
        """The rounds in which a client trained.

        None of new clients, of clients that the run did not score, and if it is not known.

        Args:
          client: its name.

        Raises:
          ValueError: there is no such client.
        """
        self._place(client)
        rounds, number = self.facts.get("rounds_trained"), self.facts["clients"].index(client)
        scored = self.facts.get("scored")
        if rounds is None or (scored is not None and number not in scored):
            return None
        place = number if scored is None else scored.index(number)
        return rounds[place] if place < len(rounds) else None

    def predict(self, client: str, x: ArrayLike, at: str = "P") -> dict[str, np.ndarray]:
        """Predicts with the model of a client.

        Args:
          client: its name.
          x: [n, *features] as in the data before they were scaled.
          at: "P" or "G".

        Returns:
          Of a regression ``y`` [n, O], in the targets' own units. Else ``outputs`` [n, O];
          ``probability`` [n, O], their softmax, or their sigmoid where an example can have
          several labels; and ``label``, [n] with the largest output, as the data have it, or
          [n, O] of 0 and 1.

        Raises:
          ValueError: there is no such client or point, or x does not fit.
        """
        self.predictor(client, at)  # refuses unknown names first
        x = self._scale_inputs(client, x)
        outputs = self.outputs(client, x, at)
        task = self.facts["model"]["task"]
        if task == "regression":
            return {"y": self._unscale(client, outputs)}
        several = task == "multi-label classification"
        probability = jax.nn.sigmoid(outputs) if several else jax.nn.softmax(outputs, axis=-1)
        label = (outputs > 0).astype(np.int32) if several else outputs.argmax(axis=-1)
        if self.facts["model"]["labels"] and not several:
            label = np.array(self.facts["model"]["labels"])[label]
        return {"outputs": outputs, "probability": np.asarray(probability), "label": label}

    def outputs(self, client: str, x: np.ndarray, at: str = "P") -> np.ndarray:
        """Outputs [n, O] of a client's model for inputs [n, *features] that are scaled."""
        predict, predictor = self.predictions(client), self.predictor(client, at)
        # Powers of two, so that few sizes are compiled. The last row fills the last batch.
        size = min(self.batch_size, 1 << (len(x) - 1).bit_length())
        rows = fill_up(np.arange(len(x)), size).reshape(-1, size)
        parts = [np.asarray(predict(predictor, x[batch])) for batch in rows]
        return np.concatenate(parts)[: len(x)]

    def predictions(self, client: str):
        """(`Predictor`, scaled inputs [B, *features]) -> outputs [B, O], compiled."""
        group, _ = self._place(client)
        return functools.partial(self._predict(self.groups.index(group)), *self._rates())

    def _rates(self):
        """What predictions depend on beside the predictor."""
        hparams = {name: np.float32(v) for name, v in self.experiment.hparams.items()}
        return hparams, np.int32(self.facts["round"])

    @functools.cache  # noqa: B019
    def _predict(self, number):
        return jax.jit(
            with_products(_prediction(self.experiment, number), str(self.config.precision))
        )

    def export(self, client: str, to: str | os.PathLike, at: str = "P") -> None:
        """Writes the model of one client into a file, which names no other client.

        Args:
          client: its name.
          to: the file, which must not exist: ``.safetensors``, which `load` reads; or a program
            from unscaled inputs to what `predict` returns as ``y`` or ``outputs``, for PyTorch
            (``.pt2``) or ONNX (``.onnx``).
          at: "P" or "G". The file has this model for both points.

        Raises:
          ValueError: there is no such client or point, the file exists or has another ending,
            PyTorch or ONNX is not installed, or the model cannot be translated for them.
          WriteError: the file cannot be written.
        """
        group, row = self._place(client)
        stacked, path = self._at(group, at), Path(to)
        if path.suffix not in ENDINGS:
            endings = " or ".join(ENDINGS)
            raise ValueError(f"to={to} has no known format; let it end with {endings}")
        if path.exists():
            raise ValueError(f"to={to} exists; remove it, or choose another file")
        if path.suffix != ".safetensors":
            write_bytes(path, self._program(client, path, at))
            return
        row_of_client = jax.tree.map(lambda leaf: leaf[row : row + 1], stacked)
        groups = {written["name"]: written for written in self.facts["groups"]}
        point = groups[group.name]["points"][at]
        models.write(
            path,
            [GroupOfModels(group.name, [client], {point: row_of_client})],
            models.facts_of_client(self.facts, client, self.rounds_trained(client)),
        )

    def _program(self, client, to, at):
        """The bytes of a program of PyTorch or ONNX."""
        try:
            from graphfl_jax.runs import torch_programs

            if to.suffix == ".onnx":
                import onnxscript  # noqa: F401 # pyright: ignore[reportMissingImports]
        except ImportError:
            packages = ENDINGS[to.suffix]
            raise ValueError(
                f"to={to} needs packages that are not all installed; run pip install {packages}"
            ) from None
        model, config = self.facts["model"], self.config
        if (
            "model.lowering" in values_of(config)[0]
        ):  # to convolutions, which other programs know
            config = change(config, {"model.lowering": "xla"})
        experiment = assemble(config, models.placeholder(self.facts))
        number = self.groups.index(self._place(client)[0])
        predict = functools.partial(_prediction(experiment, number), *self._rates())
        moved = [self._scale(client, part) for part in ("inputs", "targets")]
        row = jax.ShapeDtypeStruct(tuple(model["inputs"]), model["type"])
        module = torch_programs.Translated(predict, self.predictor(client, at), row, *moved)
        x = self._made_up(client)
        with jax.default_matmul_precision("highest"):
            outputs = self.outputs(client, self._scale_inputs(client, x), at)
        rounds = self.rounds_trained(client)
        facts = {"client": client, "at": at, "rounds_trained": rounds, "model": model}
        facts |= {key: self.facts[key] for key in ("version", "method", "round", "dataset")}
        try:
            expected = self._unscale(client, outputs)
            return torch_programs.program_of(module, to.suffix, facts, x, expected)
        except ValueError as error:
            raise ValueError(
                f"to={to}: {error}; write the model of {client} as .safetensors"
            ) from error

    def _made_up(self, client):
        """Inputs of some examples."""
        model, rng = self.facts["model"], np.random.default_rng(0)
        shape = (EXAMPLES, *model["inputs"])
        if model["type"] == "uint8":
            return rng.integers(0, 256, shape, np.uint8)
        x, moved = rng.normal(size=shape), self._scale(client, "inputs")
        return (x if moved is None else x * moved[1] + moved[0]).astype(np.float32)

    def _place(self, client):
        """The group of a client, and its row there."""
        for group in self.groups:
            if client in group.clients:
                return group, group.clients.index(client)
        raise ValueError(
            f"client={client} is none of the {len(self.clients)} clients of {self.path}"
            f"{perhaps(str(client), self.clients)}; they begin with "
            f"{', '.join(self.clients[:3])}"
        )

    @staticmethod
    def _at(group, at):
        if at not in models.POINTS:
            raise ValueError(f"at={at!r} is unknown; choose from {', '.join(models.POINTS)}")
        return group.predictors[at]

    def _groups(self, tensors):
        """The groups of the file, with the structure that the method's predictors have."""
        groups = []
        written = {group["name"]: group for group in self.facts["groups"]}
        for name, shapes in _structures(self.experiment):
            group = written.get(name)
            if group is None:  # the file is of one client, of another architecture
                groups.append(GroupOfModels(name, [], {}))
                continue
            predictors = {}
            for point, stored_as in group["points"].items():
                like, start = shapes.get(stored_as, shapes["G"]), models.prefix(name, stored_as)
                predictors[point] = self._read_tensors(
                    like, start, tensors, len(group["clients"])
                )
            groups.append(GroupOfModels(name, group["clients"], predictors))
        return groups

    def _read_tensors(self, like, start, tensors, count):
        """The tensors whose names begin with `start`, in the structure of `like`."""
        leaves = []
        for name, leaf in tree.leaves_by_name(like).items():
            tensor = tensors.get(start + name)
            expected = (count, *leaf.shape[1:])
            if tensor is None or (tensor.shape, tensor.dtype) != (expected, leaf.dtype):
                kind = "missing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
                raise ValueError(
                    f"{self.path}: {start + name} is {kind}, and this version has "
                    f"{leaf.dtype}{list(expected)}; read the file with version "
                    f"{self.facts['version']}"
                )
            leaves.append(tensor)
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _scale_inputs(self, client, x):
        """The inputs, checked and scaled as in the run."""
        model, x = self.facts["model"], np.asarray(x)
        shape = tuple(model["inputs"])
        if x.dtype.kind not in "biuf":
            raise ValueError(f"x has type {x.dtype}; give numbers")
        if x.ndim != len(shape) + 1 or x.shape[1:] != shape or not len(x):
            inputs = ", ".join(map(str, ("n", *shape)))
            raise ValueError(
                f"x has shape {x.shape}, and the models take [{inputs}]; give a row per example"
            )
        if model["type"] == "uint8" and x.dtype != np.uint8:
            raise ValueError(f"x has type {x.dtype}, and the models take uint8; give bytes")
        if model["type"] != "uint8":
            x = x.astype(np.float64)
        check_finite("predict", "x", client, x)
        moved = self._scale(client, "inputs")
        if moved is not None:
            x = (x - moved[0]) / moved[1]
        return check_finite("predict", "x", client, x)

    def _unscale(self, client, outputs):
        moved = self._scale(client, "targets")
        return outputs if moved is None else outputs * moved[1] + moved[0]

    def _scale(self, client, part):
        """Offset and scale of the inputs or the targets of a client; None without scaling."""
        scaling = self.facts["scaling"]
        if scaling is None or scaling[part] is None:
            return None
        row = scaling["clients"].index(client) if scaling["clients"] else 0
        return [np.array(scaling[part][name][row]) for name in ("offset", "scale")]


def _prediction(experiment, number):
    """The function of an architecture's predictions."""

    # As in the run's own evaluations: rates are inputs, so that the bits are the same.
    def predict(hparams, played, predictor, x):
        client = experiment.build(hparams, played).clients[number]
        return (client.predict or client.model.predict)(predictor, x)

    return predict


def _structures(experiment) -> list[tuple[str, dict[str, Any]]]:
    """The names of the architectures, and the shapes of their predictors by point."""
    program = Program(experiment.build, experiment.groups, experiment.joined)
    hparams = {name: jnp.float32(value) for name, value in experiment.hparams.items()}
    inputs = (jax.eval_shape(jax.random.key, 0), hparams)
    federation, joined = experiment.federation, bool(experiment.joined)
    state = jax.eval_shape(program.start, *inputs, federation.data)
    if joined:
        state = jax.eval_shape(program.admit, state, *inputs, federation.everyone)
    data = federation.everyone if joined else federation.data
    predictors = functools.partial(program.predictors, joined=joined)
    shapes = jax.eval_shape(predictors, state, *inputs, data)
    groups = experiment.joined or experiment.groups
    return [(group.name, tree) for group, tree in zip(groups, shapes, strict=True)]
