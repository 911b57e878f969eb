"""A client's veto: no client ends worse than alone, whatever the server sends.

Each client i trains a model v_i alone, which never starts from anything that it received:

    v_i  <- K_v steps of SGD on F_i, from v_i; in the first round, from a random model
    i takes part, if  F_val(received) <= (1 + m) F_val(v_i)
    P_i   = the method's predictor, if  V_val(predictor) <= (1 + m_P) V_val(v_i);  else v_i

F_val is the mean loss over the client's n validation examples, and of a number that is not
finite it is infinite. V_val is F_val, and with accuracy as the score

    V_val = share of wrong predictions + 1/2n mean f / (1 + f),     losses f

so that the loss decides between equal shares alone: where n is small, the losses of a few
mistakes that v_i makes with confidence outweigh all that it predicts well. Of its K_c local
steps, a client takes K_v on v_i and the others as the method does. If it does not take part, it
starts from v_i where the method sends models; with other methods it keeps what it had, and
sends what it would send untrained.

A client that starts from v_i sends the whole way from what it received to v_i. While the
server's models are young, this disturbs the method more than it helps, so m is large by
default: it is against models that are useless.

So at P, V_val of a client is at most 1 + m_P times that of a model that it has trained alone
for the share K_v / K_c of its steps. On n validation examples, two predictors that differ by
little can be confused: of values in [0, b], the mean over n examples is within
b sqrt(ln(2 / d) / 2n) of the expectation with probability 1 - d (Hoeffding), and the choice
costs at most twice that. For shares of wrong predictions, b is 1.

A round that would leave the server with a number that is not finite changes nothing there, so
that the clients of a server that attackers have destroyed go on alone.

It does not protect G, which is what the server sends, nor new clients before their first round,
nor privacy.

Departures: none; it is from no paper.
"""

import dataclasses
import functools
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, Params, Predictor, use_model
from graphfl_jax.evaluation import recalibrate, score_client
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import Trainer, sgd_trainer

ROWS = 512  # validation examples that are predicted at once
ALONE = 0xA10E  # folded into a client's key, for v_i


class Veto(NamedTuple):
    """How clients train alone, and whom they trust."""

    train: Trainer
    share: float  # K_v / K_c
    margin: Array  # m
    prediction_margin: Array  # m_P


class Chosen(NamedTuple):
    """What a predictor has beside its parameters."""

    extra: Any  # of the method's predictor
    trusted: Array  # [] bool; if not, the parameters are those of the client's own model


class Cautious(NamedTuple):
    """What a client keeps."""

    memory: Any  # of the method
    alone: Params  # v_i


def veto(
    *,
    veto_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer(
            "client",
            rate="veto_lr",
            meaning="Learning rate of what a client trains alone; presets have that of local.",
        ),
    ],
    local_steps: int,
    batch_size: int,
    veto_steps: Annotated[
        int,
        Integer("Local steps K_v in which a client trains alone; 0: a quarter.", low=0),
    ] = 0,
    veto_margin: Annotated[
        Array,
        Real("Relative loss by which a received model may be worse to be trained.", low=-1.0),
    ] = 30.0,
    veto_prediction_margin: Annotated[
        Array,
        Real("Share by which V_val of the method's predictor may be larger at P.", low=-1.0),
    ] = 0.0,
) -> Veto:
    """Assembles a `Veto`.

    Raises:
      ValueError: there are more steps than local ones; one line.
    """
    steps = veto_steps or max(local_steps // 4, 1)
    if steps > local_steps:
        raise ValueError(
            f"defence.veto_steps={steps} is more than local_steps={local_steps}; set "
            f"--config.defence.veto_steps={local_steps} or less"
        )
    trainer = sgd_trainer(veto_optimizer, steps=steps, batch_size=batch_size)
    return Veto(trainer, steps / local_steps, veto_margin, veto_prediction_margin)


def with_veto(algorithm: Algorithm, veto: Veto) -> Algorithm:
    """A method whose clients have a veto.

    Args:
      algorithm: the method, perhaps fine-tuned.

    Raises:
      ValueError: its clients have test examples in place of validation examples; one line.
    """
    if algorithm.needs.held_out not in ("", "val"):
        raise ValueError(
            f"defence.veto needs validation examples, and clients of this method have those of "
            f"the split {algorithm.needs.held_out}; set --config.defence.veto=false"
        )
    return dataclasses.replace(
        algorithm,
        needs=algorithm.needs._replace(held_out="val"),
        stays_finite=True,
        clients=tuple(_cautious(client, veto) for client in algorithm.clients),
    )


def _cautious(client: Client, veto: Veto) -> Client:
    """A client of a method, with a veto."""
    model, task = client.model, client.model.task
    predict = client.predict or model.predict
    counts_right = task.higher_is_better and not task.of_all_examples
    sends_models = client.deploy is use_model

    def mean(of_examples, predict, predictor, data):
        """Of values of a client's validation examples, [] float32."""
        ready = recalibrate(model, predictor, data)
        value = score_client(functools.partial(predict, ready), of_examples, data.val, ROWS)
        return jnp.where(jnp.isfinite(value), value, jnp.inf)

    def trusts(predictor, alone, data, margin, of_examples):
        """Whether a predictor is not worse than the model `alone`, by validation."""
        most = (1.0 + margin) * mean(of_examples, model.predict, Predictor(alone), data)
        return mean(of_examples, predict, predictor, data) <= most

    def enroll(message, key):
        alone = model.init(jax.random.fold_in(key, ALONE))
        return Cautious(client.enroll(message, key), alone)

    def local(message, held, data, key):
        key_alone = jax.random.fold_in(key, ALONE)
        alone, _ = veto.train(model.objective, held.alone, data.train, key_alone)
        received = client.deploy(message, held.memory, data)
        trusted = trusts(received, alone, data, veto.margin, task.loss)
        start = tree.where(trusted, message, alone) if sends_models else message
        work = jnp.float32(1.0) if data.train.work is None else data.train.work
        rest = data._replace(train=data.train.with_work((1.0 - veto.share) * work))
        memory, upload, metrics = client.local(start, held.memory, rest, key)
        if not sends_models:
            untrained = client.untrained(message, held.memory, data)
            memory, upload = tree.where(trusted, (memory, upload), (held.memory, untrained))
        metrics = metrics | {"vetoed": 1.0 - trusted.astype(jnp.float32)}
        return Cautious(memory, alone), upload, metrics

    def deploy(message, held, data):
        predictor = client.deploy(message, held.memory, data)
        return predictor._replace(extra=Chosen(predictor.extra, jnp.bool_(True)))

    def personalize(message, held, data, key):
        if client.personalize is None:
            predictor = client.deploy(message, held.memory, data)
        else:
            predictor = client.personalize(message, held.memory, data, key)

        def value(outputs, y):
            """Of an example, whose mean is V_val."""
            loss = task.loss(outputs, y)
            if not counts_right:
                return loss
            count = jnp.maximum(data.val.count, 1).astype(loss.dtype)
            return 1.0 - task.score(outputs, y) + loss / (1.0 + loss) / (2.0 * count)

        trusted = trusts(predictor, held.alone, data, veto.prediction_margin, value)
        params = tree.where(trusted, predictor.params, held.alone)
        return Predictor(params, Chosen(predictor.extra, trusted))

    def predict_chosen(predictor, x):
        extra, trusted = predictor.extra
        theirs = predict(predictor._replace(extra=extra), x)
        return jnp.where(trusted, theirs, model.predict(predictor, x))

    return dataclasses.replace(
        client,
        enroll=enroll,
        local=local,
        deploy=deploy,
        personalize=personalize,
        # Without more than a model, both predict alike.
        predict=None if client.predict is None else predict_chosen,
        untrained=lambda message, held, data: client.untrained(message, held.memory, data),
    )
