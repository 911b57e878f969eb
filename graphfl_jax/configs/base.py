"""Every field of a configuration, its default, and what it means. Defaults live nowhere else.

Integers, names and tuples shape the program; the floats under ``hparams`` are numbers that it
is given, so that changing one compiles nothing anew.
"""

from ml_collections import ConfigDict

# What makes a method, beyond the defaults; each data set's file adds the floats for it.
METHODS = {
    "panacea": {},
    "panacea-gn": {"hparams.lambda_d": 0.0},
    "panacea-mean": {"algorithm.layer": "mean", "hparams.embedding_dropout": 0.0},
    "panacea-mlp": {"algorithm.name": "panacea_mlp"},
    "pfedhn": {
        "algorithm.name": "pfedhn",
        "algorithm.embedding_dim": 0,
        "server_steps": 1,
        "client_optimizer": "momentum",
        "server_optimizer": "momentum",
    },
    "fedavg": {"algorithm.name": "fedavg"},
    "fedavg-finetune": {"algorithm.name": "fedavg", "tuning.part": "whole"},
    "fedprox": {"algorithm.name": "fedprox"},
    "perfedavg": {"algorithm.name": "perfedavg"},
    "pfedme": {"algorithm.name": "pfedme"},
    "ditto": {"algorithm.name": "ditto"},
    "sfl": {"algorithm.name": "sfl"},
    "sfl-star": {"algorithm.name": "sfl_star"},
    "local": {"algorithm.name": "local"},
}


def get_config() -> ConfigDict:
    """The defaults: Panacea's protocol (800 rounds of 5 clients, 50 steps of 64 examples)."""
    config = ConfigDict()
    config.seed = 0  # of the split into train and test, the initial weights, and all draws
    config.rounds = 800
    config.eval_every = 20  # rounds between evaluations
    config.checkpoint_every = 100  # rounds between checkpoints, taken at evaluations
    config.cohort_size = 5  # clients in a round
    config.batch_size = 64  # examples in a local step, drawn with replacement
    config.local_steps = 50  # K_c, a client's gradient steps in a round
    config.server_steps = 10  # K_s, a hypernetwork server's optimiser steps in a round
    config.eval_batch_size = 512  # examples scored at once, per client; bounds memory
    config.clients_per_eval = 0  # clients evaluated at once, which bounds memory too; 0: all

    config.data = ConfigDict()
    # compcars, custom, fl60, fl60_paper_formula, metr_la, pems_bay, tpt48
    config.data.name = "tpt48"
    config.data.source = "auto"  # real, file, generated or simulated; auto: what there is
    config.data.path = ""  # a data file; empty: looked for under data.root
    config.data.root = ""  # empty: $GRAPHFL_DATA, or the user's cache folder
    config.data.download = True  # whether a missing file may be fetched
    config.data.protocol = "years"  # tpt48: years (1895-2019) or windows (2008-2019)
    config.data.roads = "auto"  # traffic: relations from the file of the matrix or distances
    config.data.sensors = 0  # traffic: the first so many; 0: all
    config.data.steps = 0  # traffic: the first so many, of five minutes; 0: all
    config.data.image_size = 64  # compcars: pixels along a side, to which images are squashed
    config.data.car_relations = "nearby"  # compcars: nearby, adjacent, same, either
    config.data.generator_seed = 0  # of generated and simulated data
    config.data.val_fraction = 0.0  # of a client's examples, kept for choosing settings
    config.data.graph = "own"  # knn: joined by what clients tell of their data (data/knn.py)
    config.data.neighbours = 5  # knn: others that a client is joined to, at least

    config.new_clients.fraction = (
        0.0  # of the clients, who join only after training; 0 is nobody
    )
    config.new_clients = ConfigDict()
    config.new_clients.rounds = (
        0  # for which new clients adapt, each with its own examples alone
    )
    config.new_clients.embedding = "neighbours"  # where codes begin: see algorithms/hyper.py
    config.new_clients.graph = (
        "inductive"  # transductive: training knows new clients' relations
    )

    config.tuning = ConfigDict()  # of any method's predictor, before it is scored at P
    config.tuning.part = ""  # whole, head, new_head (Simple-Tuning); empty is no fine-tuning
    config.tuning.steps = 50  # of batch_size examples, drawn with replacement
    config.tuning.epochs = 0  # if not 0, so many passes over the examples in steps' place

    config.attack = ConfigDict()  # see attacks.py; the share of attackers is a float, below
    # label_flip, label_flip_wrong, backdoor: of data; poisoning, sign_flip, noise, alie, ipm,
    # min_max: of uploads; empty is none
    config.attack.name = ""
    config.attack.clients = ()  # who attacks: 3,7 or 'Iowa','Ohio'; empty: drawn by the seed
    config.attack.target = 1  # backdoor: the label that a trigger is to mean
    config.attack.trigger_size = 0  # backdoor: pixels along its side; 0: as large as images

    config.defence = ConfigDict()  # see defences.py
    # clip, median, trimmed_mean, krum, multi_krum, geometric_median; empty is none
    config.defence.name = ""
    config.defence.attackers = 1  # in a cohort, that trimmed_mean and krum allow for

    config.model = ConfigDict()
    config.model.name = "mlp"  # mlp; gru, gru_sampled: forecasters of series; resnet18
    config.model.hidden = (16, 16)  # widths of hidden layers; of a gru one, such as (100,)
    config.model.width = 64  # resnet18: channels of the first of its four stages
    # resnet18, of convolutions (layers.py): patches, on a CPU the faster; grouped, XLA's own
    config.model.lowering = "patches"
    config.model.weights = ""  # resnet18: a file to start from, .safetensors or .pth

    config.algorithm = ConfigDict()
    config.algorithm.name = "panacea"
    config.algorithm.layer = "sage"  # Panacea's encoder: sage, mean (the paper's), gcn
    config.algorithm.embedding_dim = 100  # of a client's code; pFedHN: 0 is 1 + N // 4
    config.algorithm.width = 100  # of a hypernetwork's hidden layers
    config.algorithm.output = "whole"  # what a hypernetwork generates: hypernets/output.py
    config.algorithm.rank = 4  # of what the profile lowrank adds to kernels
    config.algorithm.depth = 3  # layers of Panacea's encoder, and of its generator
    config.algorithm.perfedavg_hessian = "hf"  # exact; fd: finite difference; fo: none
    config.algorithm.pfedme_steps = 5  # K, steps of a personal model on each batch
    config.algorithm.sfl_layers = 3  # L, how often SFL averages over neighbours
    config.algorithm.sfl_rule = "intended"  # as_released: without what the papers' code lacks
    config.algorithm.sfl_graph_steps = 10  # of SFL*'s learner of relations, each round

    # sgd; polyak_sgd (with a cap on the step); momentum (with decay and clipping); adam
    config.client_optimizer = "sgd"
    config.server_optimizer = "polyak_sgd"

    config.hparams = ConfigDict()
    config.hparams.client_lr = 0.1
    config.hparams.server_lr = 0.03
    config.hparams.lambda_d = 0.01  # weight of Panacea's graph generator; 0 is Panacea-GN
    config.hparams.embedding_dropout = (
        0.1  # of Panacea's clients, known by neighbours in a round
    )
    config.hparams.mu = 0.1  # FedProx's pull towards the server's model; 0 is FedAvg
    config.hparams.ditto_lambda = 0.1  # pull of a personal model to the global one
    config.hparams.perfedavg_alpha = 0.01  # rate of the adaptation; client_lr is beta
    config.hparams.pfedme_lr = 0.05  # of the personal models; client_lr is eta
    config.hparams.pfedme_lambda = 15.0  # pull of a personal model to the client's copy
    config.hparams.pfedme_beta = 1.0  # how far the server goes to the clients' mean
    config.hparams.sfl_lambda = 0.3  # pull to the smoothed and to the shared model
    config.hparams.sfl_share = 1.0  # what of a client's model is smoothed
    config.hparams.sfl_graph_share = 0.05  # what of SFL*'s relations is learned
    config.hparams.sfl_graph_lr = 0.01  # of the learner of relations
    config.hparams.sampling_decay = 50.0  # gru_sampled: rounds in which the truth is read less
    config.hparams.tuning_lr = 0.1  # of fine-tuning
    config.hparams.attack_ratio = 0.0  # of the clients that train, who are malicious
    config.hparams.attack_lambda = 0.5  # poisoning: upload of -lambda times an update
    config.hparams.attack_sigma = 3.0  # noise: its size, in that of an update
    config.hparams.attack_z = 1.5  # alie: standard deviations from the mean
    config.hparams.attack_epsilon = 0.5  # ipm: upload of -epsilon times the mean update
    config.hparams.attack_alpha = 0.2  # backdoor: opacity of the trigger
    config.hparams.attack_share = 0.5  # backdoor: of an attacker's images, with the trigger
    config.hparams.defence_norm = 1.0  # clip: largest norm, in the median of the cohort's
    config.hparams.new_client_lr = (
        100.0  # of new clients' codes, where a hypernetwork fits them
    )
    # What the optimiser "momentum" adds; the values are pFedHN's.
    config.hparams.client_momentum = 0.9
    config.hparams.client_weight_decay = 5e-5
    config.hparams.client_clip = 50.0  # largest global norm of a gradient
    config.hparams.server_momentum = 0.9
    config.hparams.server_weight_decay = 1e-3
    config.hparams.server_clip = 50.0
    return config.lock()


def for_method(method: str, hparams: dict[str, float]) -> ConfigDict:
    """The defaults with the settings of one of METHODS and its floats on a data set."""
    config = get_config()
    config.update_from_flattened_dict(METHODS[method])
    config.hparams.update(hparams)
    return config


def for_traffic(config: ConfigDict) -> None:
    """Settings for forecasts of long series: the GRU, and evaluations that fit in memory.

    Adam on both sides: the gradient of twelve steps, each of which reads the last one's output,
    explodes now and then, and plain SGD diverges at the rates at which it learns (BUILD.md).
    """
    config.model.name = "gru"
    config.model.hidden = (100,)
    config.eval_every = 200
    config.clients_per_eval = 20
    config.client_optimizer = "adam"
    config.server_optimizer = "adam"
    config.hparams.new_client_lr = 0.03  # of the same Adam
