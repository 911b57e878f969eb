"""Tables and figures of FLHA-GHN: published scores, sizes, columns, drops, drawings."""

import functools
import io
import types

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments.common.score_plots import draw_panels
from experiments.paper import cached_runs as cache
from experiments.paper import weight_histograms
from experiments.paper.configurations import paper_config
from experiments.paper.figure_lines import (
    SERIES,
    Unseen,
    new_client_panels,
    series_lines,
    series_rows,
    unseen_rows,
)
from experiments.paper.flha import (
    CLIENTS,
    EXACT,
    LAYERED,
    PLAIN,
    PUBLISHED,
    RESIDUAL,
    SIZES,
    TABLES,
    UNSEEN,
    XRAY,
    cell,
    cells_of,
    unseen_cell,
    with_divisor,
    with_examples,
    with_steps,
)
from experiments.paper.flha_text import (
    DROP,
    UNSEEN_TEXT,
    columns_of,
    table_row,
    text_of,
    unseen_row,
    with_drops,
)
from graphfl_jax import configs
from graphfl_jax.build import arrange, build_experiment
from graphfl_jax.configs import change
from graphfl_jax.configs.base import variant_of
from graphfl_jax.data import from_arrays
from graphfl_jax.data.federation import with_shared_split
from graphfl_jax.models.architectures import architectures
from tests.commands import launched
from tests.federations import COST

# ---------------------------------------------------------------------------- published scores


def test_the_published_drop_is_that_of_the_architectures_that_are_not_replaced():
    """The paper states 2.2 +- 1.4, over three architectures in each of four replacements."""
    table = {
        setting: scores["flha-ghn-paper"]
        for (_, setting, _), scores in PUBLISHED["flha_7"].items()
    }
    whole = table.pop("none replaced")
    drops = [
        whole[name] - score
        for scores in table.values()
        for name, score in scores.items()
        if name in whole
    ]
    assert len(drops) == 12
    statistics = [np.mean(drops), np.std(drops, ddof=1)]
    np.testing.assert_allclose(statistics, [2.25, 1.43], atol=0.005)


def test_published_scores_of_one_federation_agree_between_tables():
    same = PUBLISHED["flha_1"]["cifar10", "4 clients", ""]["flha-ghn-paper"]
    assert PUBLISHED["flha_7"]["cifar10", "none replaced", ""]["flha-ghn-paper"] == same


def test_the_gnn_lowers_two_of_the_sixteen_published_scores():
    lower = [
        (dataset, setting, name)
        for (dataset, setting, _), scores in PUBLISHED["flha_2"].items()
        for name in PLAIN
        if scores["flha-ghn-paper"][name] < scores["flha-ghn-no-gnn-paper"][name]
    ]
    assert lower == [("cifar100", "4 clients", "plain4"), ("cifar100", "8 clients", "plain13")]


def test_distillation_is_above_flha_ghn_on_cifar10_with_four_clients_but_for_arch0():
    scores = PUBLISHED["flha_1"]["cifar10", "4 clients", ""]
    above = [scores["distillation"][name] > scores["flha-ghn-paper"][name] for name in RESIDUAL]
    assert above == [False, True, True, True]


# The numbers that the paper prints, without those of distillation in Table 3.
COUNTS = {"flha_1": 102, "flha_2": 32, "flha_3": 39, "flha_5": 72, "flha_7": 20, "flha_b": 16}


@pytest.mark.parametrize("table", COUNTS)
def test_every_published_score_is_of_a_row_and_a_column_of_its_table(table):
    design, count = TABLES[table], 0
    for (dataset, setting, test), scores in PUBLISHED[table].items():
        assert (dataset, setting) in [
            (of_columns.dataset, of_columns.setting) for of_columns in design.places
        ]
        assert test in design.tests and set(scores) <= set(design.methods)
        for of_columns in scores.values():
            assert set(of_columns) <= set(design.columns)
            count += len(of_columns)
    assert len(PUBLISHED[table]) == len(design.places) * len(design.tests)
    assert count == COUNTS[table]
    assert not any(PUBLISHED[other] for other in PUBLISHED.keys() - COUNTS.keys())


# ------------------------------------------------------------------------------- what is run


def assert_optimiser_of_the_paper(config):
    assert config.client_optimizer == "momentum" and config.client_schedule == "cosine"
    hparams = config.hparams
    assert hparams.client_momentum == 0.9 and hparams.client_weight_decay == 5e-5
    assert hparams.client_clip == 50.0 and hparams.client_horizon == config.rounds


@pytest.mark.parametrize("name", ["flha_cifar10", "cifar10", "cifar100", "chest_xray"])
@pytest.mark.parametrize("method", LAYERED)
def test_the_optimiser_is_that_of_the_paper_in_all_configurations(name, method):
    assert_optimiser_of_the_paper(getattr(configs, name).get_config(method))


@pytest.mark.parametrize("method", EXACT)
def test_the_exact_method_has_what_the_paper_states_alone(method):
    config = configs.flha_cifar10.get_config(method)
    assert (config.client_optimizer, config.client_schedule) == ("sgd", "cosine")
    hparams = config.hparams
    assert hparams.client_lr == hparams.flha_head_lr == 0.009
    assert not {"client_clip", "client_momentum", "client_weight_decay"} & set(hparams)
    assert (config.model.width, config.data.image_size, config.data.cap) == (64, 32, 0)
    assert (config.rounds, config.local_epochs) == (1000, 1)
    assert config.algorithm.flha_head_epochs == 1


@pytest.mark.parametrize(
    "table, profile",
    [(name, size) for name, design in TABLES.items() for size in design.sizes],
)
def test_every_cell_is_a_configuration_of_all_methods(table, profile):
    """The configuration checks every field and its value."""
    for of_table in cells_of(table, profile):
        for method in TABLES[table].methods:
            config = paper_config(of_table, method, source="simulated")
            assert variant_of(config) == method
            assert config.cohort_size == config.data.clients
            assert config.eval_every == config.rounds == SIZES[profile].rounds
            assert config.data.name == of_table.dataset
            assert config.client_schedule == "cosine"
            assert config.hparams.client_horizon == config.rounds
            if method in LAYERED:
                assert_optimiser_of_the_paper(config)
            names = config.model.architectures
            assert len(names) == (1 if method == "fedavg" else 4)
            assert all(name in columns_of(table, config) or "5" in table for name in names)


@pytest.mark.parametrize(
    "table, place, expected",
    [
        ("flha_1", 0, (4, 195)),  # 50,000 / 4 / 64
        ("flha_1", 5, (16, 49)),
        ("flha_3", 1, (8, 175)),  # 0.8 x 112,120 / 8 / 64
        ("flha_7", 2, (4, 195)),
    ],
)
def test_a_full_round_is_an_epoch(table, place, expected):
    config = paper_config(cell(TABLES[table].places[place], "full"), "flha-ghn")
    assert (config.data.clients, config.local_steps) == expected
    assert (config.model.width, config.data.cap, config.rounds) == (64, 0, 1000)


def images(clients, channels=3):
    """Four images of every client, with ten labels."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (8 * clients, 4, 4, channels)).astype(np.uint8)
    return from_arrays(x, np.arange(len(x)) % 10, np.arange(len(x)) % clients)


@pytest.mark.parametrize("method", TABLES["flha_2"].methods)
def test_the_experiment_of_a_cell_is_built(method):
    config = paper_config(cells_of("flha_2", "small")[0], method)
    experiment = build_experiment(config, images(4))
    groups = {group.name: group.ids.tolist() for group in experiment.groups}
    assert groups == columns_of("flha_2", config)


def test_the_upper_bound_has_the_first_architecture_alone():
    config = paper_config(cells_of("flha_3", "small")[0], "fedavg")
    assert columns_of("flha_3", config) == {XRAY[0]: [0, 1, 2, 3]}
    assert config.data.pooled_test and config.data.image_size == 64
    config = paper_config(cells_of("flha_5", "small")[0], "fedavg")
    assert columns_of("flha_5", config) == {name: [i] for i, name in enumerate(CLIENTS)}


def test_a_replaced_architecture_leaves_its_place_to_the_small_network():
    names = [place.architectures for place in TABLES["flha_7"].places]
    assert names[0] == RESIDUAL and names[2] == ("arch0", "plain4", "arch2", "arch3")
    assert len({place.setting for place in TABLES["flha_7"].places}) == 5


def test_the_learning_rate_falls_until_the_last_round_of_a_quick_look():
    config = paper_config(cells_of("flha_1", "small")[0], "local", rounds=2)
    assert config.rounds == config.hparams.client_horizon == 2
    config = paper_config(unseen_cell("arch1"), "local", rounds=2)
    assert config.client_schedule == "constant" and "client_horizon" not in config.hparams


def test_all_points_of_a_figure_have_as_many_steps_in_all():
    points = [with_steps(steps, "small") for steps in (5, 25, 200)]
    configs = [paper_config(point, "flha-ghn") for point in points]
    assert [config.rounds for config in configs] == [200, 40, 5]
    assert {config.rounds * config.local_steps for config in configs} == {1000}
    assert [config.hparams.client_horizon for config in configs] == [200.0, 40.0, 5.0]


def test_the_number_of_examples_changes_nothing_else():
    few, many = (paper_config(with_examples(n, "small"), "local") for n in (125, 8000))
    assert (few.data.cap, many.data.cap) == (125, 8000)
    for config in (few, many):
        config.data.cap = 0
        assert (config.local_steps, config.rounds, config.data.balanced_test) == (25, 40, 2000)
    assert few == many
    assert paper_config(with_examples(500, "full"), "local").local_steps == 195


# ------------------------------------------------------------------------------------ rows


def run_of(scores, *, split="final", source="real"):
    """A run whose clients have the given scores at P, 0.1 more at L, and 0.1 less at G."""
    moved = {"G": -0.1, "L": 0.1, "P": 0.0}
    points = {at: {"per_client": [score + by for score in scores]} for at, by in moved.items()}
    return {
        "metric": "accuracy",
        "hparams": {},
        "diverged": False,
        "new_clients": None,
        "dataset": {"source": source, "extent": "at most 2000 images"},
        "scores": {"final": points, split: points},
        **COST,
    }


def cells_of_rows(table, rows):
    """The text of rows, without the heads."""
    return text_of(table).cells(rows)[1:]


def row_of(table, place, method, *runs, size="small"):
    of_table = cells_of(table, size)[place]
    return table_row(table, of_table, paper_config(of_table, method), list(runs))


def test_a_row_has_the_means_of_each_architecture_and_their_spread():
    """Eight clients: those of arch0 are 0 and 4. Seeds have the means 0.4 and 0.5."""
    first = [0.1, 0.3, 0.5, 0.7] * 2
    second = [0.3, 0.3, 0.5, 0.7, 0.5, 0.3, 0.5, 0.9]
    runs = run_of(first), run_of(second)
    row = row_of("flha_1", 1, "flha-ghn-paper", *runs, size="full")
    text, printed = cells_of_rows("flha_1", [row])
    expected = "cifar10|8 clients|flha-ghn-paper|25.00|30.00|50.00|75.00|35.00|45.00|5.00"
    assert text == [*expected.split("|"), "50", "9000.00", "2.00"]
    paper = "cifar10|8 clients|published|89.50|88.10|86.50|88.50||88.15||||"
    assert printed == paper.split("|")
    narrow = row_of("flha_1", 1, "flha-ghn-paper", *runs)
    searched = row_of("flha_1", 1, "flha-ghn", *runs, size="full")
    for other in (narrow, searched):  # not the paper's width, rate and optimiser
        assert len(cells_of_rows("flha_1", [other])) == 1


def test_the_upper_bound_has_a_score_of_one_architecture():
    row = row_of("flha_1", 0, "fedavg", run_of([0.2, 0.4, 0.6, 0.8]))
    text, printed = cells_of_rows("flha_1", [row])
    assert text[3:9] == ["50.00", "", "", "", "40.00", "50.00"]
    assert printed[3:9] == ["93.60", "", "", "", "", "93.60"]


def test_both_test_sets_have_lines_of_the_clients():
    run = run_of([0.9, 0.8, 0.7, 0.6], split="balanced")
    run["scores"]["balanced"] = {
        at: {"per_client": [0.5, 0.4, 0.3, 0.2]} for at in ("G", "L", "P")
    }
    lines = cells_of_rows("flha_5", [row_of("flha_5", 2, "local", run)])
    assert [line[2:6] for line in lines] == [
        ["local", "own", "90.00", "80.00"],
        ["published", "own", "93.60", "96.60"],
        ["local", "balanced", "50.00", "40.00"],
        ["published", "balanced", "51.10", "27.80"],
    ]


def test_radiographs_are_scored_on_the_images_of_all_clients():
    run = run_of([0.6] * 4, split="pooled")
    run["scores"]["final"] = None  # of the clients' own images, which are few
    row = row_of("flha_3", 0, "local", run | {"metric": "auc"})
    assert cells_of_rows("flha_3", [row])[0][3] == "60.00"


def test_a_diverged_run_and_simulated_images_have_no_published_line():
    broken = run_of([0.5] * 4) | {"diverged": True}
    row = row_of("flha_1", 0, "local", run_of([0.5] * 4), broken)
    (text,) = cells_of_rows("flha_1", [row])
    assert text[3] == "1 of 2 diverged"
    row = row_of("flha_1", 0, "local", run_of([0.5] * 4, source="simulated"))
    assert len(cells_of_rows("flha_1", [row])) == 1
    assert "cifar10: simulated; not comparable" in text_of("flha_1").markdown([row])


def test_drops_are_those_of_the_architectures_that_are_not_replaced():
    """The published ones, as if they were measured, with a second seed 0.1 points higher."""
    rows = []
    for place, federation in enumerate(TABLES["flha_7"].places):
        printed = PUBLISHED["flha_7"]["cifar10", federation.setting, ""]["flha-ghn-paper"]
        scores = np.array([printed[name] for name in federation.architectures]) / 100
        seeds = [run_of(scores), run_of(scores + 0.001 * (place == 0))]
        rows.append(row_of("flha_7", place, "flha-ghn-paper", *seeds, size="full"))
        rows.append(row_of("flha_7", place, "flha-ghn-table", *seeds))
    complete = with_drops(rows)
    assert complete[:-2] == rows and {row["setting"] for row in complete[-2:]} == {DROP}
    mine, printed, table = cells_of_rows("flha_7", complete[-2:])
    # arch0: 90.4 - (88.6 + 88.8 + 88.2) / 3; arch3: 88.5 - (83.6 + 86.2 + 88.2) / 3
    assert printed[3:8] == ["1.87", "3.07", "1.57", "2.50", ""] and printed[9] == "2.25"
    assert mine[3:11] == ["1.92", "3.12", "1.62", "2.55", "", "2.30", "2.30", "0.05"]
    assert table[2:4] == ["flha-ghn-table", "1.92"]
    assert with_drops(rows[2:]) == rows[2:]  # without the cell where none is replaced
    page = text_of("flha_7").markdown(complete)
    assert page.count(f"| {DROP} |") == 3 and f"*{DROP}*" in page


def test_the_page_states_sizes_and_test_sets():
    rows = [row_of("flha_1", k, "local", run_of([0.5] * 4 * 2**k)) for k in (0, 2)]
    page = text_of("flha_1").markdown(rows)
    assert "Test accuracy in %, means over 1 seed." in page
    size = (
        "40 rounds of all 4 clients, 25 steps of 64 images with 8 channels in the first layer"
    )
    assert f"- cifar10, 4 clients: {size}, at most 2000 images\n" in page
    assert "its divisor is the number of seeds" in page
    assert "cannot be compared with the published ones" in page and "*balanced*" not in page
    full = cells_of("flha_5", "full")[0]
    run = run_of([0.5] * 4, split="balanced")
    row = table_row("flha_5", full, paper_config(full, "local"), [run])
    page = text_of("flha_5").markdown([row])
    assert "*balanced* is one test set" in page and "cannot be compared" not in page


@pytest.mark.parametrize("table", TABLES)
def test_a_console_of_80_columns_shows_a_whole_table(table):
    (split,) = set(TABLES[table].tests.values()) - {"test"} or {"final"}
    longest = "flha-ghn-no-gnn"
    row = row_of(table, 0, longest, run_of([0.5] * 4, split=split))
    drawn = text_of(table).console([row])
    title = str(drawn.title)
    assert title.startswith(f"{table} on ") and title.endswith("at P in %, 1 seed")
    console = Console(width=80, file=io.StringIO())
    console.print(drawn)
    text = console.file.getvalue()
    assert longest in text and text.count("50.00") == 5 * len(TABLES[table].tests)
    assert "9000.00" not in text  # costs are in Markdown alone


# --------------------------------------------------------------------------------- figures


def test_a_series_has_the_scores_of_each_method_and_number():
    """Two seeds; no-gnn diverges once with 250 examples."""
    seen = []

    def runs_of(of_figure, method):
        config = paper_config(of_figure, method)
        seen.append(config)
        cap = config.data.cap
        below = {"flha-ghn": 0.0, "flha-ghn-no-gnn": 0.1, "local": 0.2}[method]
        scores = [cap / 10_000 - below + 0.3, cap / 10_000 + 0.3]
        broken = (cap, method) == (250, "flha-ghn-no-gnn")
        runs = [
            {
                "metric": "accuracy",
                "diverged": broken and score == scores[1],
                "scores": {"balanced": {"P": {"per_client": [score - 0.1, score + 0.1]}}},
            }
            for score in scores
        ]
        return runs

    figure = SERIES["flha_examples"]._replace(numbers={"small": (125, 250)})
    methods = ["flha-ghn", "flha-ghn-no-gnn", "local"]
    lines = series_lines(figure, methods, "small", runs_of)
    names = ["flha-ghn", "flha-ghn-no-gnn (1 diverged)", "local"]
    assert [line["name"] for line in lines] == names
    assert [line["x"] for line in lines] == [[125, 250], [125], [125, 250]]
    np.testing.assert_allclose(lines[2]["seeds"], [[0.1125, 0.125], [0.3125, 0.325]])
    # All methods with the same data, which are then loaded once
    assert [config.data.cap for config in seen] == [125] * 3 + [250] * 3
    heads, *rows = series_rows(lines, figure.label)
    assert [row[:2] for row in rows] == [
        ["flha-ghn", "125"],
        ["flha-ghn", "250"],
        ["flha-ghn-no-gnn (1 diverged)", "125"],
        ["local", "125"],
        ["local", "250"],
    ]
    assert heads[3:] == ["flha-ghn minus it", "flha-ghn-no-gnn minus it"]
    # Differences 20 and 0: mean and standard error 10, quantile of Student's t 12.706.
    # Those from no-gnn: 10 and 0.
    assert rows[0][2:] == ["31.25±0.00", "", ""]
    assert rows[2][2:] == ["26.25±63.53", "5.00±63.53", ""]
    assert rows[3][2:] == ["21.25±127.06", "10.00±127.06", "5.00±63.53"]
    assert rows[4][2:] == ["22.50±127.06", "10.00±127.06", ""]
    assert {len(row) for row in rows} == {len(heads)}
    (axes,) = draw_panels({"cifar10": lines}, "examples", ticks=(125, 250)).axes
    assert axes.get_xscale() == "log" and axes.get_xticks().tolist() == [125, 250]
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [31.25, 32.5])


def test_every_point_of_the_figures_is_a_configuration():
    for figure in SERIES.values():
        for size, numbers in figure.numbers.items():
            for number in numbers:
                config = paper_config(figure.cell(number, size), figure.methods[-1])
                assert config.eval_every == config.rounds >= 5


def test_types_of_layers_that_occur_once_are_scored_apart():
    """The first client has 0.1 per divisor of its width, the others always 0.9."""

    def runs_of(of_figure, method):
        first, *more = paper_config(of_figure, method).model.architectures
        assert tuple(more) == RESIDUAL[1:]
        score = 0.1 * int(first.removeprefix("arch0").removeprefix("/") or 1)
        return [run_of([score, 0.8, 0.9, 1.0])]

    seeds = {}
    for name in ("flha_once", "flha_once_others"):
        (line,) = series_lines(SERIES[name], ["local"], "full", runs_of)
        assert line["x"] == [1, 2, 4]
        seeds[name] = line["seeds"]
    np.testing.assert_allclose(seeds["flha_once"], [[0.1, 0.2, 0.4]])
    np.testing.assert_allclose(seeds["flha_once_others"], [[0.9, 0.9, 0.9]])


@pytest.mark.parametrize("divisor, once", [(1, 0), (2, 4), (4, 6)])
def test_a_divisor_makes_types_of_layers_that_occur_once(divisor, once):
    for profile in SIZES:
        config = paper_config(with_divisor(divisor, profile), "flha-ghn")
        first, *more = architectures(
            inputs=(16, 16, 3),
            outputs=10,
            task="classification",
            architectures=config.model.architectures,
            width=config.model.width,
            lowering="xla",
        )
        types, *types_of_more = (
            {node.type for node in model.architecture.nodes} for model in (first, *more)
        )
        assert len(types - {"input"}) == 9 and len(types - set().union(*types_of_more)) == once
    shared = paper_config(cells_of("flha_1", "small")[0], "flha-ghn")
    assert (paper_config(with_divisor(divisor, "small"), "flha-ghn") == shared) == (not once)


# -------------------------------------------------------------------- unseen architectures


def joined_run(scores, diverged_at=-1):
    """A run whose new client has these scores at G, and 0.1 more at P."""
    curve = [
        {"rounds": k, "G": {"mean": score}, "L": {"mean": 0.0}, "P": {"mean": score + 0.1}}
        for k, score in enumerate(scores)
    ]
    joined = {"curve": curve, "diverged_at": diverged_at}
    return run_of([0.5] * 3) | {"new_clients": joined}


CLIMBING = np.linspace(0.2, 0.6, 21)  # 0.3 after 5 rounds


@pytest.mark.parametrize("name", [*RESIDUAL, *PLAIN])
def test_a_new_client_has_the_architecture_that_the_others_lack(name):
    for profile in SIZES:
        config = paper_config(unseen_cell(name, profile), "flha-ghn")
        trained, new = config.model.architectures, config.new_clients.architectures
        size = len(trained)
        assert new == (name,) and name not in trained
        assert {*trained, name} in ({*RESIDUAL}, {*RESIDUAL, "plain4"}, {*PLAIN})
        assert (config.cohort_size, config.data.clients) == (size, size + 1)
        assert round(config.new_clients.fraction * (size + 1)) == 1


@pytest.mark.parametrize("profile", SIZES)
def test_random_and_generated_starts_are_trained_by_the_same_optimiser(profile):
    """FLHA-GHN refines the models of new clients without a schedule."""
    unseen = unseen_cell("arch1", profile)
    random, generated = (paper_config(unseen, method) for method in ("local", "flha-ghn"))
    assert random.client_optimizer == generated.client_optimizer == "momentum"
    assert random.client_schedule == "constant"
    for name in ("momentum", "weight_decay", "clip"):
        assert random.hparams[f"client_{name}"] == generated.hparams[f"client_{name}"]
    assert random.local_steps == generated.local_steps
    assert random.new_clients == generated.new_clients and random.data == generated.data
    # A random start does not depend on what the others have trained.
    assert random.rounds == random.eval_every == 1
    assert generated.rounds == SIZES[profile].rounds


def test_the_small_network_has_layers_that_no_residual_network_has():
    """Figure 7 of the paper: these start fresh, and the others are generated."""
    config = paper_config(unseen_cell("plain4"), "flha-ghn")
    experiment = build_experiment(config, arrange(config, images(5)))
    *trained, new = experiment.build(experiment.hparams, 0).clients
    known = {node.type for client in trained for node in client.model.architecture.nodes}
    types = [node.type for node in new.model.architecture.nodes]
    assert 0 < len(set(types) - known) < len(set(types))


@pytest.mark.parametrize("method", ["flha-ghn-table", "local"])
def test_the_experiment_with_an_unseen_architecture_is_built(method):
    config = paper_config(unseen_cell("plain7"), method)
    experiment = build_experiment(config, arrange(config, images(4)))
    groups = {group.name: group.ids.tolist() for group in experiment.groups}
    assert groups == {"plain4": [0], "plain10": [1], "plain13": [2]}
    models = [client.model for client in experiment.build(experiment.hparams, 0).clients]
    assert models[-1].architecture.name == "plain7" and len(models) == 4


def test_a_row_has_the_scores_after_rounds_of_the_new_client():
    unseen = unseen_cell("arch1")
    config = paper_config(unseen, "flha-ghn")
    wide = paper_config(unseen_cell("arch1", "full"), "flha-ghn-paper")
    runs = [joined_run(CLIMBING), joined_run(CLIMBING + 0.1)]
    assert unseen_row(unseen, wide, runs)["published"] == 84.2
    row = unseen_row(unseen, config, runs)
    _, text = UNSEEN_TEXT.cells([row])
    expected = (
        "cifar10|arch1 unseen|flha-ghn|25.00|27.00|35.00|65.00|5.00|75.00|50|9000.00|2.00"
    )
    assert text == [*expected.split("|"), ""]
    broken = unseen_row(unseen, config, [runs[0], joined_run([0.1], diverged_at=1)])
    _, text = UNSEEN_TEXT.cells([broken])
    assert text[3] == "1 of 2 diverged"
    page = UNSEEN_TEXT.markdown([row])
    assert "40 rounds of all 3 clients, 25 steps" in page
    assert "then 20 rounds of the new client" in page


def test_generated_starts_are_above_random_ones_in_the_paper():
    gains = [UNSEEN["flha-ghn-paper"][name] - UNSEEN["local"][name] for name in RESIDUAL]
    np.testing.assert_allclose(gains, [2.2, 2.9, 0.6, 2.0])


def test_the_figure_has_a_panel_for_each_unseen_architecture():
    """Seed 1 diverges with flha-ghn, and seed 0 with the table."""

    def runs_of(of_figure, method):
        below = {"flha-ghn": [0.0, 0.1, 0.0], "flha-ghn-table": [0.5, 0.2, 0.1]}
        lost = {"flha-ghn": 1, "flha-ghn-table": 0}.get(method)
        return [
            joined_run(CLIMBING - by, diverged_at=3 if seed == lost else -1) | {"seed": seed}
            for seed, by in enumerate(below.get(method, [0.1, 0.0, 0.2]))
        ]

    figure = Unseen(("arch0", "plain7"))
    assert figure.methods == ("flha-ghn", "flha-ghn-no-gnn", "flha-ghn-table", "local")
    methods = ["flha-ghn", "flha-ghn-table", "local"]
    panels = new_client_panels(figure.cells("small"), methods, runs_of, "G")
    names = ["flha-ghn (1 diverged)", "flha-ghn-table (1 diverged)", "local"]
    for lines in panels.values():
        assert [line["name"] for line in lines] == names
        assert [line["kept"] for line in lines] == [[0, 2], [1, 2], [0, 1, 2]]
    heads, *rows = unseen_rows(panels)
    assert heads[2:] == ["rounds", "G, %", "sd seeds", "flha-ghn minus it"]
    assert len(rows) == 2 * 3 * 4 and {len(row) for row in rows} == {len(heads)}
    assert [row[:3] for row in rows[2:5]] == [
        ["arch0", names[0], "5"],
        ["arch0", names[0], "20"],
        ["arch0", names[1], "0"],
    ]
    assert rows[2][3:] == ["30.00", "0.00", ""]
    # Seeds 1 and 2 have 0 and 10; seed 2 alone is in both.
    assert rows[4][3:] == ["5.00", "5.00", "10.00"]
    # Seeds 0 and 2 have the differences 10 and 20: standard error 5, quantile 12.706.
    assert rows[8][3:] == ["10.00", "8.16", "15.00±63.53"]
    drawn = draw_panels(panels, "rounds").axes
    assert [axes.get_title() for axes in drawn] == ["arch0", "plain7"]
    np.testing.assert_allclose(drawn[0].get_lines()[0].get_ydata(), 100 * CLIMBING)


def test_a_method_that_always_diverges_has_no_rows_and_no_differences():
    def runs_of(of_figure, method):
        lost = method == "flha-ghn"
        return [
            joined_run(CLIMBING, diverged_at=3 if lost else -1) | {"seed": seed}
            for seed in (0, 1)
        ]

    figure = Unseen(("arch0",))
    methods = ["flha-ghn", "local"]
    panels = new_client_panels(figure.cells("small"), methods, runs_of, "G")
    rows = unseen_rows(panels)[1:]
    assert [row[1] for row in rows] == ["local"] * 4
    assert [row[-1] for row in rows] == [""] * 4


# ----------------------------------------------------------------------------------- runs


@pytest.fixture
def tiny_run(monkeypatch, tmp_path):
    """Runs a cell with networks of one channel on a few images, for one round of one step."""

    def run(of_table, method, **changes):
        small = {
            "data.cap": 0,
            "model.width": 1,
            "model.architectures": ("plain4",),
            "model.lowering": "xla",
            "batch_size": 4,
            "local_steps": 1,
            "rounds": 1,
            "eval_every": 1,
        }
        config = change(paper_config(of_table, method, source="simulated"), small | changes)
        federation = images(4)
        x, y = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in federation.data.train[:2])
        federation = with_shared_split(federation, "balanced", x, y)
        arranged = arrange(config, federation)
        monkeypatch.setattr(cache, "load_federation", lambda config: arranged)
        monkeypatch.setattr(cache, "LOADED", {})
        return config, cache.cached_runs(config, [0], cache.Cache(tmp_path), at_once=1)

    return run


@pytest.mark.release
def test_rows_are_made_of_real_runs(tiny_run):
    dirichlet = cells_of("flha_5", "small")[0]
    config, (run,) = tiny_run(dirichlet, "fedavg")
    row = table_row(
        "flha_5", dirichlet, config, [run | {"dataset": {"source": "real", "extent": ""}}]
    )
    of_clients, balanced = row["lines"]
    for i, name in enumerate(CLIENTS):
        expected = 100 * run["scores"]["final"]["P"]["per_client"][i]
        np.testing.assert_allclose(of_clients["points"]["P"][name], [expected])
        assert of_clients["published"][name] == [92.9, 93.2, 94.1, 94.5][i]
    assert of_clients["points"] != balanced["points"]
    # FedAvg sends the model: three convolutions with their normalisations, and the head.
    size = 27 + 2 * 9 + 3 * 2 + 10 + 10
    assert row["cost"]["kilobytes"] == pytest.approx(2 * 4 * size / 1e3)
    assert row["cost"]["steps"] == pytest.approx(config.local_steps)


@pytest.mark.release
def test_rows_of_unseen_architectures_are_made_of_real_runs(tiny_run):
    unseen = unseen_cell("plain7")
    config, runs = tiny_run(unseen, "flha-ghn-table")
    row = unseen_row(unseen, config, runs)
    assert np.shape(row["scores"]["G"]) == np.shape(row["scores"]["P"]) == (1, 21)
    assert len(UNSEEN_TEXT.cells([row])) == 2


# --------------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    "words, message",
    [
        (["--table=flha_1", "--clients=5"], "clients='5' is unknown; choose from 4, 8, 16"),
        (
            ["--table=flha_2", "--datasets=fl60"],
            "datasets='fl60' is unknown; choose from cifar10",
        ),
        (
            ["--table=panacea_2", "--clients=4"],
            "clients=4 is not read, since panacea_2 has the clients of its data sets; leave",
        ),
        (
            ["--table=flha_large", "--profile=full"],
            "profile=full is not read, since flha_large has one size; leave --profile out",
        ),
        (["--table=flha_3", "--data_root=nowhere"], "nih-chestxray"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused_in_one_line(tmp_path, words, message):
    status, _, errors = launched("tables", *words, cwd=tmp_path)
    assert status == 2 and message in errors and errors.count("\n") == 1, errors
    assert not list(tmp_path.iterdir())


def test_a_figure_of_one_size_refuses_another(tmp_path):
    words = ["--figure=pfedgat_4", "--profile=full"]
    status, _, errors = launched("figures", *words, cwd=tmp_path)
    assert status == 2 and errors == (
        "error: profile=full is not read, since pfedgat_4 has one size; leave --profile out\n"
    )
    assert not list(tmp_path.iterdir())


def test_the_weights_of_generated_and_initial_models_are_counted_in_bins():
    """Of the generated weights, half are -1 and half 1, so that their kurtosis is 1."""
    signs = np.tile(np.float32([-1, 1]), 50).reshape(10, 10)
    draw = functools.partial(jax.random.normal, shape=(100, 100))
    architecture = types.SimpleNamespace(name="arch9")
    model = types.SimpleNamespace(architecture=architecture, init=lambda key: {"w": draw(key)})
    experiment = types.SimpleNamespace(
        build=lambda hparams, played: types.SimpleNamespace(
            clients=(types.SimpleNamespace(model=model),)
        ),
        hparams={},
        groups=(types.SimpleNamespace(ids=np.array([1])),),
    )
    params = {"b": {"w": signs, "bias": np.full(10, 9.0)}}
    fleet = types.SimpleNamespace(clients=("a", "b"), params=lambda client, at: params[client])
    (line,) = weight_histograms.weight_lines(fleet, experiment)
    assert line["name"] == "arch9" and len(line["edges"]) == weight_histograms.BINS + 1
    for name in ("generated", "initial"):
        np.testing.assert_allclose(sum(line[name]["shares"]), 1.0)
    shares = np.array(line["generated"]["shares"])
    np.testing.assert_allclose(shares[shares > 0], 0.5)
    rows = weight_histograms.weight_rows([line])
    assert rows[1] == ["arch9", "generated", "1.000", "-2.0"]
    assert abs(line["initial"]["std"] - 1) < 0.05 and abs(line["initial"]["kurtosis"]) < 0.2
    (axes, *_) = weight_histograms.draw_weights([line]).axes
    assert axes.get_title() == "arch9" and axes.get_yscale() == "log"
