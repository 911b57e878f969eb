"""Names of methods: the values that make them, and the names of configurations."""

import pytest

from graphfl_jax.configs import PRESETS, change, methods
from graphfl_jax.configs.base import variant_of
from graphfl_jax.configs.published import published_score
from graphfl_jax.data import DATASETS


@pytest.mark.parametrize("preset", PRESETS)
def test_a_configuration_has_the_name_of_its_method(preset):
    for method in methods():
        config = PRESETS[preset](method)
        assert variant_of(config) == method
        assert config.data.name in DATASETS


@pytest.mark.parametrize("preset", PRESETS)
def test_a_client_with_a_veto_trains_alone_at_the_rate_of_local(preset):
    cautious = change(PRESETS[preset]("fedavg"), {"defence.veto": True})
    assert cautious.hparams.veto_lr == PRESETS[preset]("local").hparams.client_lr


@pytest.mark.parametrize(
    "method, changes, name",
    [
        ("panacea", {"hparams.lambda_d": 0.0}, "panacea-gn"),
        ("panacea", {"hparams.lambda_d": 0.7}, "panacea"),
        ("panacea", {"algorithm.layer": "mean"}, "panacea+layer=mean"),
        ("panacea", {"hparams.embedding_dropout": 0.0}, "panacea+embedding_dropout=0.0"),
        ("panacea-mean", {"hparams.lambda_d": 0.0}, "panacea-mean+lambda_d=0.0"),
        ("panacea-gn", {"algorithm.layer": "mean"}, "panacea-gn+layer=mean"),
        ("panacea", {"algorithm.difference": "printed"}, "panacea+difference=printed"),
        ("panacea-mean", {"server_optimizer": "sgd"}, "panacea-mean"),
        ("panacea-paper", {"hparams.lambda_d": 0.0}, "panacea-paper-gn"),
        ("panacea-paper", {"algorithm.difference": "printed"}, "panacea-paper-printed"),
        (
            "panacea-paper",
            {"server_optimizer": "polyak_sgd"},
            "panacea-mean+inner_product=plain",
        ),
        ("pfedhn", {"client_optimizer": "adam"}, "pfedhn+client_optimizer=adam"),
        ("pfedhn", {"hparams.client_lr": 0.7}, "pfedhn"),
        ("pfedgat", {"algorithm.paper_mode": True}, "pfedgat-paper"),
        ("pfedgat-v2", {"algorithm.paper_mode": True}, "pfedgat-v2+paper_mode=True"),
        ("pfedgat", {"algorithm.feedback": "update"}, "pfedgat"),
        ("pfedgat", {"server_optimizer": "adam"}, "pfedgat"),
        ("pfedgat-dot", {"server_optimizer": "sgd"}, "pfedgat+attention=dot"),
        ("flha-ghn", {"algorithm.ghn_depth": 2}, "flha-ghn"),
        ("flha-ghn", {"algorithm.ghn_depth": 0}, "flha-ghn-no-gnn"),
        ("flha-ghn", {"client_optimizer": "sgd"}, "flha-ghn-paper"),
        ("fedavg", {"tuning.part": "whole"}, "fedavg-finetune"),
        ("ditto", {"tuning.part": "new_head"}, "ditto-simple-tuning"),
        ("fedbabu", {"tuning.steps": 3}, "fedbabu"),
        ("fedbabu", {"tuning.part": "head"}, "fedbabu+part=head"),
        ("panacea", {"rounds": 3, "cohort_size": 2, "model.hidden": (4,)}, "panacea"),
    ],
)
def test_values_that_depart_from_all_variants_are_in_the_name(method, changes, name):
    assert variant_of(change(PRESETS["tpt48"](method), changes)) == name


def test_published_scores_are_those_of_exact_variants():
    config = PRESETS["tpt48"]("panacea-paper")
    sage = change(config, {"algorithm.layer": "sage"})
    data = {"source": "real", "extent": ""}
    assert published_score(config, variant_of(config), data).mean == 2.6
    others = map(PRESETS["tpt48"], ("panacea", "panacea-mean", "panacea-gn"))
    for other in (sage, *others):
        assert published_score(other, variant_of(other), data) is None


def test_the_papers_new_clients_start_with_random_embeddings():
    """The value of a variant waits until new clients join."""
    config = PRESETS["tpt48"]("panacea-paper")
    assert "new_client_embedding" not in config.algorithm
    joined = change(config, {"new_clients.fraction": 0.2})
    assert joined.algorithm.new_client_embedding == "random"
    assert variant_of(joined) == "panacea-paper"
    other = change(joined, {"algorithm.new_client_embedding": "zero"})
    assert variant_of(other) != "panacea-paper"
