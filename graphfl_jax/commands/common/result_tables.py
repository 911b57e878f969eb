"""Tables of one run's results for a console."""

from rich.table import Table

from graphfl_jax.evaluation import POINTS

COLUMNS = 6  # targets of a table


def metric_table(metrics: dict) -> Table:
    """Means of the further metrics at G, L and P, and how many clients have one."""
    table = Table(
        title="further metrics",
        caption="test; means over the clients for which the metric is defined",
    )
    table.add_column("metric")
    for column in (*POINTS, "clients"):
        table.add_column(column, justify="right")
    for name in metrics["P"]:
        means = [metrics[point][name]["mean"] for point in POINTS]
        cells = ["none" if mean is None else f"{mean:.4g}" for mean in means]
        table.add_row(name, *cells, str(metrics["P"][name]["clients"]))
    return table


def architecture_table(results: dict) -> Table:
    """Test scores of the clients of each architecture, and the traffic of one of them."""
    table = Table(
        title="by architecture",
        caption=f"means of {results['metric']} over clients, test; bytes per client and round",
    )
    table.add_column("architecture")
    for column in ("clients", *POINTS, "down", "up"):
        table.add_column(column, justify="right")
    for name, own in results["architectures"].items():
        scores = (f"{own['scores']['test'][point]:.4g}" for point in POINTS)
        traffic = (f"{own[way]:,}" for way in ("down_bytes", "up_bytes"))
        table.add_row(name, str(len(own["clients"])), *scores, *traffic)
    return table


def own_error_table(errors: dict) -> Table:
    """Errors of scaled targets at G, L and P in the targets' own units."""
    targets = list(errors["G"])[:COLUMNS]
    others = len(errors["G"]) - len(targets)
    table = Table(
        title="MAE/RMSE in the targets' own units",
        caption="test, means over clients"
        + (f"; results.json has {others} more targets" if others else ""),
    )
    table.add_column("scored at")
    for target in targets:
        table.add_column(target, justify="right")
    for point in POINTS:
        cells = (errors[point][target] for target in targets)
        table.add_row(point, *(f"{own['mae']:.4g}/{own['rmse']:.4g}" for own in cells))
    return table


def label_table(results: dict) -> Table:
    """The AUC of each label at G, L and P, and how many clients have one."""
    labels = results["labels"]
    table = Table(
        title=f"AUC by label on {results['dataset']['name']}",
        caption="test; means over the clients with positive and negative examples",
    )
    table.add_column("label")
    for column in (*POINTS, "clients"):
        table.add_column(column, justify="right")
    for label in labels["P"]:
        own = [labels[point][label] for point in POINTS]
        scores = ["none" if one["auc"] is None else f"{one['auc']:.4g}" for one in own]
        table.add_row(label, *scores, str(own[-1]["clients"]))
    return table


def new_clients_table(results: dict) -> Table:
    """Test scores of the new clients when they join and after each of their rounds."""
    new_clients = results["new_clients"]
    table = Table(
        title=f"{len(new_clients['clients'])} new clients on {results['dataset']['name']}",
        caption=f"{results['metric']} after rounds in which only the new clients adapt"
        + (
            f"; diverged in round {new_clients['diverged_at']}"
            if new_clients["diverged_at"] >= 0
            else ""
        ),
    )
    for column in ("rounds", *POINTS, "sd over clients at P", "worst decile at P"):
        table.add_column(column, justify="right")
    for row in new_clients["curve"]:
        scores = [row[point]["mean"] for point in POINTS]
        scores += [row["P"]["std_clients"], row["P"]["worst_decile"]]
        table.add_row(str(row["rounds"]), *(f"{score:.4g}" for score in scores))
    return table


def attack_table(results: dict) -> Table:
    """Test scores of all and of benign clients, and the success rate of a backdoor.

    Benign clients are also split by the share of malicious ones among their neighbours.
    """
    attack, everyone = results["attack"], results["scores"]["final"]
    defence = f" against {results['defence']}" if results["defence"] else ""
    notes = [results["metric"], "results.json has their names", rejected_text(results)]
    table = Table(
        title=f"{attack['name']}{defence}, {len(attack['ids'])} malicious clients",
        caption="; ".join(filter(None, notes)),
    )
    table.add_column("test scores of")
    for column in ("clients", *POINTS):
        table.add_column(column, justify="right")

    def add(name, count, scores):
        table.add_row(name, str(count), *(f"{scores[point]:.4g}" for point in POINTS))

    means = {point: everyone[point]["mean"] for point in POINTS}
    add("all clients", len(everyone["P"]["per_client"]), means)
    benign = attack["benign"]
    if benign:
        means = {point: benign[point]["mean"] for point in POINTS}
        add("benign clients", len(benign["P"]["per_client"]), means)
    for row in attack["benign_by_malicious_neighbours"] or ():
        share = "no neighbour" if row["share"] == "none" else row["share"]
        add(f"  {share} malicious", len(row["ids"]), row["scores"])
    if attack["success"]:
        add("attack success", "", attack["success"])
    return table


def rejected_text(results: dict) -> str:
    """The shares of rejected uploads; empty without a defence that rejects some."""
    shares = results["rejected"]
    if shares is None:
        return ""
    named = [
        f"{shares[who]:.1%} of {who}"
        for who in ("honest", "malicious")
        if shares[who] is not None
    ]
    return f"rejected uploads: {', '.join(named)} clients"
