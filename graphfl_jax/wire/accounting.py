"""Epsilon and delta of differential privacy, by the accountants of `dp_accounting`.

`central` with Poisson cohorts: T rounds of the Gaussian mechanism with noise multiplier z, of
which each client takes part in a round with the probability q. Neighbours are federations with
and without one client. With fixed cohorts of m of N clients, neighbours differ in that one
client sends nothing; only the accountant `rdp` knows such cohorts, and its epsilon is about
twice as large. `local`: as many Gaussian mechanisms as the client with the most rounds had,
with the sensitivity 2 C, since any update may stand in place of another.

Mironov. Renyi Differential Privacy. CSF 2017 (rdp). Wang, Balle, Kasiviswanathan. Subsampled
Renyi Differential Privacy and Analytical Moments Accountant. AISTATS 2019 (fixed cohorts).
Koskela, Jaelkoe, Honkela. Computing Tight Differential Privacy Guarantees Using FFT. AISTATS
2020 (pld).
"""

import importlib.util
import math
from typing import Annotated, NamedTuple

from ml_collections import ConfigDict

from graphfl_jax.settings import Choice, Real
from graphfl_jax.wire.poisson import MISSED

RDP, PLD = "rdp", "pld"
ACCOUNTED = ("central", "local")  # of the registered ones, epsilon is not known
# Of privacy in results
FACTS = (
    "name",
    "epsilon",
    "delta",
    "accountant",
    "noise_multiplier",
    "clip",
    "rounds",
    "cohort",
    "population",
)
# Of Renyi divergences. At smaller ones, those of Poisson cohorts are not always found.
ORDERS = (*range(2, 65), 80, 128, 256, 512, 1024)


class Accounting(NamedTuple):
    """How privacy is counted."""

    accountant: str
    delta: float


def accounting(
    *,
    accountant: Annotated[
        str, Choice("Accountant of epsilon: Renyi, or privacy loss distributions.", (RDP, PLD))
    ] = RDP,
    privacy_delta: Annotated[float, Real("Delta, for which epsilon is computed.", high=1.0)] = (
        1e-5
    ),
) -> Accounting:
    """How privacy is counted."""
    return Accounting(accountant, privacy_delta)


class Rounds(NamedTuple):
    """The rounds of a run, or of the deployment whose noise it has."""

    number: int  # T
    cohort: float  # m, or its mean
    clients: int  # N
    poisson: bool


def check_accountant(config: ConfigDict) -> None:
    """Checks that the accountant of a configuration can be used.

    Raises:
      ValueError: it is not installed, or does not know such cohorts; one line.
    """
    name, accountant = config.privacy.name, config.privacy.accountant
    if importlib.util.find_spec("dp_accounting") is None:
        raise ValueError(
            f"privacy.name={name!r} needs dp-accounting, which is not installed; run "
            f"pip install 'graphfl_jax[privacy]'"
        )
    if accountant == PLD and name == "central" and config.cohort == "fixed":
        raise ValueError(
            f"privacy.accountant={accountant} does not know fixed cohorts; set "
            f"--config.cohort=poisson or --config.privacy.accountant={RDP}"
        )
    chosen = {
        "availability.name=trace": config.availability.name == "trace",
        f"clock.wait_for={config.clock.get('wait_for')}": config.clock.get("wait_for", 0),
    }
    for setting, holds in chosen.items():
        if holds and name == "central":
            raise ValueError(
                f"privacy.name={name!r} counts on clients that are drawn with equal "
                f"probability whatever the others do, and with {setting} they are not; leave "
                f"it out, or set --config.privacy.name=local"
            )
    noise, least = config.hparams.privacy_noise, config.cohort_size / 10
    if config.privacy.get("clipping") == "quantile" and noise >= least:
        raise ValueError(
            f"hparams.privacy_noise={noise:g} is too large for privacy.clipping=quantile with "
            f"cohort_size={config.cohort_size}; set less than {least:g}, or a larger cohort"
        )
    deployed, population = (
        config.hparams.get(f"privacy_{field}", 0.0) for field in ("cohort", "population")
    )
    if deployed > 0 and population < deployed:
        raise ValueError(
            f"hparams.privacy_population={population:g} is less than "
            f"hparams.privacy_cohort={deployed:g}; set the number of clients of the deployment"
        )


def privacy_of(config: ConfigDict, clients: int, participation: int) -> dict:
    """What a run costs of its clients' privacy, for results.

    `central` counts all rounds of the configuration, also if the run stopped before: when it
    does depends on its clients.

    Args:
      clients: that train.
      participation: rounds of the client that trained most often.

    Returns:
      ``name``, ``epsilon``, None where there is none, ``delta``, ``accountant``, and the
      ``noise_multiplier`` and ``clip`` that were set; the counted ``rounds``, and of `central`
      the ``cohort`` and the ``population`` from which it was drawn, else None. Of a registered
      privacy only the name is known.
    """
    hparams, name = config.hparams, config.privacy.name
    if name not in ACCOUNTED:
        return dict.fromkeys(FACTS) | {"name": name}
    counted = Accounting(config.privacy.accountant, hparams.privacy_delta)
    noise, cohort, population = hparams.privacy_noise, None, None
    if name == "local":
        number = participation
        epsilon = local_epsilon(noise, participation, counted)
    else:
        poisson, number = config.cohort == "poisson", config.rounds
        cohort, population = float(min(config.cohort_size, clients)), clients
        missed = number * MISSED if poisson else 0.0
        if hparams.privacy_cohort > 0:
            cohort, population = hparams.privacy_cohort, round(hparams.privacy_population)
        rounds = Rounds(number, cohort, population, poisson)
        counted = counted._replace(delta=counted.delta - missed)
        epsilon = central_epsilon(noise, rounds, counted)
    counts = (hparams.privacy_delta, config.privacy.accountant, noise, hparams.privacy_clip)
    epsilon = epsilon if math.isfinite(epsilon) else None
    facts = (name, epsilon, *counts, number, cohort, population)
    return dict(zip(FACTS, facts, strict=True))


def central_epsilon(noise: float, rounds: Rounds, accounting: Accounting) -> float:
    """Epsilon of the models that a server sends.

    Args:
      noise: z.

    Raises:
      ImportError: `dp_accounting` is not installed.
    """
    import dp_accounting as dp

    if noise == 0:
        return math.inf
    event = dp.GaussianDpEvent(noise)
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if rounds.poisson:
        event = dp.PoissonSampledDpEvent(rounds.cohort / rounds.clients, event)
    elif rounds.cohort < rounds.clients:
        sizes = rounds.clients, round(rounds.cohort)
        event = dp.SampledWithoutReplacementDpEvent(*sizes, event)
        relation = dp.NeighboringRelation.REPLACE_ONE
    return _epsilon(event, rounds.number, relation, accounting)


def local_epsilon(noise: float, rounds: int, accounting: Accounting) -> float:
    """Epsilon of the uploads of a client that sent in as many rounds."""
    import dp_accounting as dp

    if noise == 0 and rounds:
        return math.inf
    event = dp.GaussianDpEvent(noise / 2)
    return _epsilon(event, rounds, dp.NeighboringRelation.ADD_OR_REMOVE_ONE, accounting)


def _epsilon(event, number, relation, accounting):
    import dp_accounting as dp
    from dp_accounting import pld, rdp

    if not number:
        return 0.0
    counted = pld.PLDAccountant(relation)
    if accounting.accountant == RDP:
        counted = rdp.RdpAccountant(ORDERS, relation)
    counted.compose(dp.SelfComposedDpEvent(event, number))
    return float(counted.get_epsilon(accounting.delta))
