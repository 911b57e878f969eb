"""pFedGAT: each client gets a mixture of all models, whose shares are graph attention.

Zhou, Gao, Wu, Lyu. Personalized Federated Learning via Learning Dynamic Graphs. 2025.
https://arxiv.org/abs/2503.05474

    u_i = sum_j R_ij w_j,      R_i. = mean over heads of softmax_j e_ij,    j = 1 ... N
    w_i <- K_c steps of SGD on F_i from u_i
    phi <- phi - lr d/dphi sum_i V_i(u_i),     V_i: the loss on client i's validation examples

The server holds the last model w_i of every client, h_i as a vector, and the weights phi of the
attention, whose logits e_ij ``algorithm.attention`` chooses:

    v1      LeakyReLU(a^T [W h_i || W h_j])                  the paper's
    v2      a^T LeakyReLU(W [h_i || h_j])
    direct  B_ij, free numbers that start at 0               the paper's ablation, one head
    dot     t x_i . x_j, and e_ii = max_{j != i} e_ij + b    t > 0, one head
    given   log (A + I)_ij with the relations A              nothing is learned, one head

LeakyReLU has slope 0.2. In v1 and v2, h_i is normalised to mean 0 and variance 1. In v1, for
a = [a_1, a_2], e_ij increases with a_1^T W h_i + a_2^T W h_j, so that in each head all clients
rank all clients in the same order. In dot, x_i is h_i minus the mean over clients, divided by
its norm; t and b are learned.

dV_i/dR_ij is g_i . w_j with g_i = grad V_i(u_i). ``algorithm.feedback`` is what the server
gets:

    gradient  g_i
    update    nothing; u_i - w_i stands for g_i
    spsa      V_i of two more models, the mixtures of shares softmax_j(log R_ij +- c D_ij) with
              random signs D; (V+ - V-) / 2c D_ij stands for dV_i / d log R_ij

With ``attention=given``, it is update.

P is G, the mixture u_i. L is the model after local training.

``pfedgat-paper`` is the paper's method: attention that is trained on test examples, plain SGD
with the rate 0.01 on both sides, and no clipping. The configurations of images give it the
paper's network, conv3, and 5 epochs in a round. ``pfedgat-direct-paper`` is its ablation.

Departures:
  * The attention is trained on validation examples. The paper trains it on the test examples
    that it also reports; ``algorithm.paper_mode`` does so.
  * In the paper, clients send V_i alone. A number per client does not determine the gradient;
    ``feedback`` says what is sent in place of it.
  * A client that was not sampled takes part in the mixtures with its last model.
  * The paper's optimiser is SGD; ``server_optimizer`` may be another. The server sees no
    objective, so polyak_sgd always takes steps of server_lr.
  * v1 with ``attention_collapsed`` learns W^T a, two vectors per head, in place of W and a. It
    has the same logits, about 2 / d' of the memory, and other steps.
  * A new client starts from its mixture, in which the mean of the known clients' models takes
    the place of its own. After its first round its own model does. The known clients' mixtures
    and phi do not change, unless ``new_clients.join`` is together, as in the paper.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import core, tree
from graphfl_jax.algorithms.attention import ATTENTIONS, Attention, log_shares
from graphfl_jax.algorithms.method import facts, variant
from graphfl_jax.data import relations
from graphfl_jax.evaluation import score_client
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Real, Switch, Variant
from graphfl_jax.trainers import Train

NEEDS = core.Needs(held_out="val")
ROWS = 32  # validation examples whose loss is computed at once


class AttentionServer(NamedTuple):
    """The state of pFedGAT's server."""

    uploads: core.Params  # the last model w_i of every client, [N, ...]
    mixing: core.Array  # R, [N, N]; its rows sum to one
    weights: Any  # of the attention
    opt_state: Any
    signs: Any  # D of the current round, [N, N]; 0 between rounds; (), if feedback is not spsa


# ---------------------------------------------------------------------------- feedback


class Feedback(NamedTuple):
    """What clients send for the attention."""

    kind: str  # a key of `FEEDBACK`
    held_out: str = ""  # the split of the examples that it reads
    step: core.Array | float = 0.0  # c


PaperMode = Annotated[
    bool, Switch("Trains pFedGAT's attention on test examples, as in the paper.")
]


def gradient(*, paper_mode: PaperMode = False) -> Feedback:
    """The gradient of the loss of the mixture."""
    return Feedback("gradient", _split(paper_mode))


def update() -> Feedback:
    """Nothing: the server takes the client's update."""
    return Feedback("update")


def spsa(
    *,
    paper_mode: PaperMode = False,
    spsa_step: Annotated[core.Array, Real("Step c of spsa in log R.", low=1e-6)] = 0.1,
) -> Feedback:
    """Two losses.

    Spall. Multivariate Stochastic Approximation Using a Simultaneous Perturbation Gradient
    Approximation. IEEE Transactions on Automatic Control 37(3), 1992.
    """
    return Feedback("spsa", _split(paper_mode), spsa_step)


def _split(paper_mode):
    return "test" if paper_mode else "val"


FEEDBACK = {"gradient": gradient, "update": update, "spsa": spsa}


# -------------------------------------------------------------------------- the method


@facts(needs=NEEDS, values={"algorithm.paper_mode": False})
def pfedgat(
    model: core.ClientModel,
    train: Train,
    *,
    num_clients: int,
    attention: Annotated[
        Attention,
        Variant("Logits of pFedGAT's attention.", tuple(ATTENTIONS), factories=ATTENTIONS),
    ] = "v1",
    feedback: Annotated[
        Feedback,
        Variant(
            "What the server of pFedGAT gets to train its attention.",
            tuple(FEEDBACK),
            factories=FEEDBACK,
        ),
    ] = "gradient",
    server_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer("server", (("lr", 0.01),), meaning="Learning rate of the attention."),
    ],
) -> core.Algorithm:
    """Builds pFedGAT.

    A message is (mixture, others), where spsa has two other mixtures and the rest have none. An
    upload is (trained model, feedback).

    Args:
      model: of the clients.
      train: local trainer.
      num_clients: N, clients that train.
      attention: its logits.
      feedback: what clients send for it.
      server_optimizer: of its weights.

    Raises:
      ValueError: there are too many clients for N x N numbers.
    """
    relations.check_number_of_pairs(num_clients, "pfedgat")
    if not attention.learns:
        feedback = update()  # so that clients send nothing for it
    optimizer = optax.with_extra_args_support(server_optimizer)
    perturbs = feedback.kind == "spsa"

    def mixing_of(weights, models):
        return jnp.exp(log_shares(attention.logits(weights, tree.as_matrix(models)[0])))

    def init(key, graph):
        key_model, key_attention = jax.random.split(key)
        root = model.init(key_model)
        models = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_clients), root)
        size = sum(leaf.size for leaf in jax.tree.leaves(root))
        weights = attention.init(key_attention, graph, (num_clients, size))
        return AttentionServer(
            models,
            mixing_of(weights, models),
            weights,
            optimizer.init(weights),
            jnp.zeros((num_clients, num_clients)) if perturbs else (),
        )

    def begin_round(server, key):
        if not perturbs:
            return server
        return server._replace(signs=jax.random.rademacher(key, server.mixing.shape, float))

    def download(server, i):
        mixture = tree.mean(server.uploads, server.mixing[i])
        if not perturbs:
            return mixture, ()
        steps = feedback.step * server.signs[i]
        others = [server.mixing[i] * jnp.exp(step) for step in (steps, -steps)]
        return mixture, tuple(tree.mean(server.uploads, shares) for shares in others)

    def local(message, memory, data, key):
        mixture, others = message

        def loss(params):
            return held_out_loss(model, model.recalibrate(params, data.train), data.val)

        if feedback.kind == "gradient":
            sent = jax.grad(loss)(mixture)
        else:
            sent = tuple(map(loss, others))
        trained, metrics = train(model.objective, mixture, data.train, key)
        return memory, (trained, sent), metrics

    def untrained(message, memory, data):
        mixture, others = message
        if feedback.kind == "gradient":
            return mixture, jax.tree.map(jnp.zeros_like, mixture)
        return mixture, tuple(jnp.float32(0.0) for _ in others)

    def aggregate(server, cohort, uploads, key):
        trained, sent = uploads
        models, ids = tree.as_matrix(server.uploads)[0], cohort.ids
        shares = server.mixing[ids]  # [M, N]
        # slopes: dV_i / d log R_ij, [M, N]
        if perturbs:
            slopes = (sent[0] - sent[1]) / (2.0 * feedback.step)  # (V+ - V-) / 2c
            slopes = slopes[:, None] * server.signs[ids]  # times D_ij
        else:
            if feedback.kind == "gradient":
                gradients = tree.as_matrix(sent)[0]  # g_i
            else:
                gradients = shares @ models - tree.as_matrix(trained)[0]  # u_i - w_i
            # What is common to all models changes nothing, and costs digits.
            differences = models - jnp.mean(models, axis=0, keepdims=True)
            slopes = shares * (gradients @ differences.T)  # R_ij g_i . w_j

        # Its gradient is that of sum_i V_i(u_i) with respect to phi.
        def linear_part(weights):
            return jnp.sum(slopes * log_shares(attention.logits(weights, models))[ids])

        gradient = jax.grad(linear_part)(server.weights)
        updates, opt_state = optimizer.update(
            gradient, server.opt_state, server.weights, value=jnp.inf
        )
        weights = optax.apply_updates(server.weights, updates)
        kept = tree.put(server.uploads, ids, trained)
        signs = jax.tree.map(jnp.zeros_like, server.signs)
        return AttentionServer(kept, mixing_of(weights, kept), weights, opt_state, signs)

    def admit(server, new_clients, graph, key):
        known, added = len(server.mixing), len(new_clients)
        mean = tree.mean(server.uploads, jnp.ones(known))
        models = jax.tree.map(
            lambda old, new: jnp.concatenate([old, jnp.stack([new] * added)]),
            server.uploads,
            mean,
        )
        weights = attention.grow(server.weights, graph)
        mixing = mixing_of(weights, models).at[:known].set(0.0)
        return AttentionServer(
            models,
            mixing.at[:known, :known].set(server.mixing),
            weights,
            tree.grow(server.opt_state, optimizer.init(weights)),
            jnp.zeros_like(mixing) if perturbs else (),
        )

    def adapt_new_clients(server, cohort, uploads, key):
        models = tree.put(server.uploads, cohort.ids, uploads[0])
        rows = mixing_of(server.weights, models)[cohort.ids]
        mixing = server.mixing.at[cohort.ids].set(rows)
        return server._replace(uploads=models, mixing=mixing)

    def relate(server, related):
        known = len(server.mixing)  # new clients can have relations before they join
        weights = relations.mean_over_related(related[:known, :known])
        mixing = mixing_of(weights, server.uploads)
        return server._replace(weights=weights, mixing=mixing)

    server = core.Server.of_one(
        init,
        download,
        aggregate,
        begin_round=begin_round,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
        allocation=lambda server: server.mixing,
        relate=None if attention.learns else relate,
    )
    client = core.Client(
        model,
        local,
        # Messages and uploads begin with a model.
        deploy=lambda sent, memory, data: core.Predictor(sent[0]),
        untrained=untrained,
    )
    return core.Algorithm(server, (client,), needs=NEEDS._replace(held_out=feedback.held_out))


ADAM = {"server_optimizer": "adam", "hparams.server_lr": 0.2}
pfedgat_v2 = variant(pfedgat, {"algorithm.attention": "v2"})
pfedgat_direct = variant(pfedgat, {"algorithm.attention": "direct", **ADAM})
pfedgat_dot = variant(pfedgat, {"algorithm.attention": "dot", **ADAM})
PAPER = {
    "algorithm.paper_mode": True,
    "client_optimizer": "sgd",
    "hparams.client_lr": 0.01,
    "server_optimizer": "sgd",
    "hparams.server_lr": 0.01,
}
pfedgat_paper = variant(pfedgat, PAPER)
pfedgat_direct_paper = variant(pfedgat, {"algorithm.attention": "direct", **PAPER})


def held_out_loss(
    model: core.ClientModel, params: core.Params, examples: Examples | Windows
) -> core.Array:
    """Mean loss of a model over a client's examples: a scalar.

    Its gradient computes the activations again, so that it holds those of ROWS examples only.
    """

    def outputs(x):
        return model.apply(params, x)

    return score_client(jax.checkpoint(outputs), model.task.loss, examples, ROWS)
