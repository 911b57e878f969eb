"""FLHA-GHN: clients of different architectures average a hypernetwork that makes their models.

Litany, Maron, Acuna, Kautz, Chechik, Fidler. Federated Learning with Heterogeneous
Architectures using Graph HyperNetworks. 2022. https://arxiv.org/abs/2201.08459

    W_i = K_c steps of SGD on W -> F_i(theta(A_i; W)), from W
    W  <- 1/|T| sum_{i in T} W_i

and for a new client, whose architecture A_i may be one that no other client has,

    theta_i = theta(A_i; W), and then
    theta_i <- K_c steps of SGD on theta -> F_i(theta), from theta_i, in each of its rounds

theta(A; W) are the parameters of a model with the architecture graph A, which a graph
hypernetwork generates, see `hypernets.architecture_ghn`. G is theta(A_i; W), L is
theta(A_i; W_i), and P is G after client i has trained the head alone for some epochs. The mean
is over all clients, also for the weights of types of layers that a client's model lacks: the
client changes these by weight decay alone. ``algorithm.flha_generator=table`` replaces the
hypernetwork by one set of parameters for each type, see `hypernets.layer_types`.

Layers of a type that no trained architecture has start fresh, as the client's model initialises
them; in the graph network, their nodes have no features. For a new client, G is theta_i, so
when it joins it is theta(A_i; W). L is theta_i after one
more round, and P is theta_i with a refined head, as above. W does not change any more.

In training, models are not sent. A message and an upload are W each. Let there be n types of
nodes. Let the sum be over the types l that have parameters; their layers have d_l numbers, and
c_l output channels if they have a kernel. Then with a graph network of T > 0 layers of width E,
and hidden width H of the network of a type, W has

    2 n E + E + (T - 1) (2 E^2 + E) + sum_l [(E + 1) H + (H + 1) (d_l + c_l)]

floats. For T = 0 they are the sum alone, with n in place of E, and with the table sum_l d_l.
With ``algorithm.ghn_layer=gated``, (T + 6) E^2 + 4 E stands in place of the terms before it.

Departures: a fixed number of local steps on batches drawn with replacement, not epochs. The
paper states the learning rate 0.009 and a cosine schedule, which falls over
``hparams.client_horizon`` rounds here. It does not state momentum, weight decay and batch size;
here they are 0.9, 5e-5 and 64 by default, the momentum starts anew in every round, and
gradients are clipped at ``hparams.client_clip``. Nor does it say how the scales and biases of
batch normalisations are made; here the network of their convolution generates them. The rate
with which heads are refined is ``hparams.flha_head_lr``, without a schedule. The paper refines
the models of new architectures locally, and does not say how; here new clients train all
layers with the clients' optimiser at ``hparams.flha_new_client_lr``, without a schedule.

``flha-ghn-paper`` has what the paper states and nothing else: plain SGD at 0.009 with a cosine
schedule, without momentum, weight decay and clipping, and heads that are refined for an epoch
at the same rate. The configuration ``flha_cifar10`` gives it the paper's width, whole images
and epochs. ``flha-ghn-no-gnn-paper`` is its ablation.
"""

import functools
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import core, tree
from graphfl_jax.algorithms.method import facts, variant
from graphfl_jax.algorithms.tuning import finetune
from graphfl_jax.hypernets.architecture_ghn import GENERATORS
from graphfl_jax.hypernets.layer_types import ModelGenerator
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Integer, Variant
from graphfl_jax.trainers import Train, epoch_trainer, sgd_trainer


class Model(NamedTuple):
    """A client model itself, as message and upload after new clients have joined."""

    params: core.Params


class Joined(NamedTuple):
    """The state after new clients have joined, with what these keep."""

    weights: Any  # of the generator
    new_clients: tuple[core.Array, ...]  # ids [m] for each architecture
    models: tuple[core.Params, ...]  # those of the new clients, leaves [m, ...], likewise


# Settings that `panacea_flha` shares.
HeadOptimizer = Annotated[
    optax.GradientTransformation,
    Optimizer(
        "client",
        (("lr", 0.009),),
        rate="flha_head_lr",
        meaning="Learning rate of the heads that FLHA-GHN refines for P.",
    ),
]
HeadEpochs = Annotated[
    int, Integer("Epochs for which a client trains its head for P; 0: none.", low=0)
]
NewClientOptimizer = Annotated[
    optax.GradientTransformation,
    Optimizer(
        "client",
        (("lr", 0.009),),
        rate="flha_new_client_lr",
        meaning="Learning rate with which new clients of FLHA-GHN train their models.",
    ),
]
SMALL = 100_000  # numbers of a tensor that is trained as a part of one vector

NEEDS = core.Needs(layers=True)
VALUES = {
    "client_optimizer": "momentum",
    "client_schedule": "cosine",
    "hparams.client_lr": 0.009,
}


@facts(needs=NEEDS, values=VALUES)
def flha_ghn(
    models: tuple[core.ClientModel, ...],
    train: Train,
    *,
    flha_generator: Annotated[
        ModelGenerator,
        Variant(
            "What makes the clients' models from the shared weights: a graph hypernetwork, or "
            "a table with one set of parameters for each type of layer.",
            tuple(GENERATORS),
            factories=GENERATORS,
        ),
    ] = "ghn",
    flha_head_optimizer: HeadOptimizer,
    flha_head_epochs: HeadEpochs = 1,
    new_client_optimizer: NewClientOptimizer,
    batch_size: int,
    local_steps: int,
    unseen: tuple[core.ClientModel, ...] = (),
) -> core.Algorithm:
    """Builds FLHA-GHN. Server state, message and upload are the weights of the generator each.

    After new clients have joined, the state is `Joined`, and message and upload are a `Model`.

    With a defence that makes one update of all, each architecture has a robust mean, and the
    server averages these, weighted by the numbers of clients.

    Args:
      models: of all architectures.
      train: trains the generator's weights.
      flha_generator: of `models`.
      flha_head_optimizer: refines heads.
      flha_head_epochs: passes over the examples.
      new_client_optimizer: refines the models of new clients.
      batch_size: examples in a step of refining.
      local_steps: steps K_c in which a new client refines its model.
      unseen: of the architectures that only new clients have.
    """
    generator = flha_generator
    generates = [functools.partial(generator.generate, k=k) for k in range(len(models))]
    starts = [lambda weights, key, of=of: of(weights) for of in generates]
    starts += map(generator.for_architecture, unseen)
    refine_model = sgd_trainer(new_client_optimizer, steps=local_steps, batch_size=batch_size)

    def client_of(model, generate):
        def local(message, memory, data, key):
            if isinstance(message, Model):
                params, metrics = refine_model(model.objective, message.params, data.train, key)
                return memory, Model(params), metrics

            # The weights have many small tensors. With an optimiser's operations on each of
            # them, a program of four architectures has 1.3 times as many operations to compile.
            parts, back = tree.join_small(message, SMALL)

            def objective(parts, batch, key):
                return model.objective(generate(back(parts)), batch, key)

            parts, metrics = train(objective, parts, data.train, key)
            return memory, back(parts), metrics

        def deploy(held, memory, data):
            return core.Predictor(held.params if isinstance(held, Model) else generate(held))

        return core.Client(model, local, deploy=deploy)

    def download(server, group, i):
        if not isinstance(server, Joined):
            return server
        ids = server.new_clients[group]
        if not len(ids):
            return Model(generates[group](server.weights))
        place = jnp.minimum(jnp.searchsorted(ids, i), len(ids) - 1)
        trained = tree.take(server.models[group], place)
        if group >= len(models):  # all clients of an unseen architecture are new
            return Model(trained)
        generated = generates[group](server.weights)
        choose = functools.partial(jnp.where, ids[place] == i)
        return Model(jax.tree.map(choose, trained, generated))

    def aggregate(weights, cohorts, uploads, key):
        answers = [cohort.answers.astype(jnp.float32) for cohort in cohorts]
        number = jnp.maximum(sum(map(jnp.sum, answers)), 1.0)
        shares = [each / number for each in answers]

        def mean(*rows):
            pairs = zip(shares, rows, strict=True)
            return sum(jnp.tensordot(share, part, axes=1) for share, part in pairs)

        return jax.tree.map(mean, *uploads)

    def copies_of(params, count):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), params)

    def admit(weights, new_clients, graph, key):
        begun = tuple(
            copies_of(start(weights, jax.random.fold_in(key, number)), len(ids))
            for number, (ids, start) in enumerate(zip(new_clients, starts, strict=True))
        )
        return Joined(weights, new_clients, begun)

    def adapt_new_clients(server, cohorts, uploads, key):
        models = tuple(
            old if upload is None else upload.params
            for old, upload in zip(server.models, uploads, strict=True)
        )
        return server._replace(models=models)

    server = core.Server(
        init=lambda key, graph: generator.init(key),
        download=download,
        aggregate=aggregate,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
        plays_on=False,  # new clients keep models, and the generator is finished
    )
    clients = tuple(map(client_of, models, generates))
    clients += tuple(client_of(model, None) for model in unseen)  # they get models alone
    algorithm = core.Algorithm(server, clients, needs=NEEDS, averages=True)
    if not flha_head_epochs:
        return algorithm
    refine = epoch_trainer(flha_head_optimizer, epochs=flha_head_epochs, batch_size=batch_size)
    return finetune(algorithm, refine, tuning_part="head")


flha_ghn_no_gnn = variant(flha_ghn, {"algorithm.ghn_depth": 0})
flha_ghn_table = variant(flha_ghn, {"algorithm.flha_generator": "table"})
PAPER = {**VALUES, "client_optimizer": "sgd", "hparams.flha_head_lr": 0.009}
flha_ghn_paper = variant(flha_ghn, PAPER)
flha_ghn_no_gnn_paper = variant(flha_ghn, {**PAPER, "algorithm.ghn_depth": 0})
