"""FedBuff: its uploads and steps against a simulation of events, one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax.build import build_experiment
from graphfl_jax.core import Cohort
from graphfl_jax.draws import draw_clients
from graphfl_jax.testing.subject import federation, small_config, stack
from graphfl_jax.wire.clock import devices

RATE, CONCURRENCY, BUFFER, CLIENTS = 0.7, 3, 2, 7


def server_and_state():
    config = small_config(
        "fedbuff",
        cohort_size=BUFFER,
        algorithm__fedbuff_concurrency=CONCURRENCY,
        hparams__server_lr=RATE,
        hparams__step_spread=1.0,
    )
    experiment = build_experiment(config, federation())
    server = experiment.build(experiment.hparams, 0).server
    return server, server.init(jax.random.key(0), federation().data.graph)


class Events:
    """The clients that train, in float64: [client, when it ends, steps before, its model]."""

    def __init__(self, state, ids):
        numbers = sum(leaf.size for leaf in jax.tree.leaves(state.model))
        everyone = jnp.arange(CLIENTS)
        taken = devices(step_spread=1.0).seconds(everyone, jnp.full(7, 5.0), 8.0 * numbers)
        self.taken, self.now, self.steps = np.float64(taken), 0.0, 0
        self.model = jax.tree.map(np.float64, state.model)
        self.running = [self.begun(i) for i in ids]

    def begun(self, i):
        return [i, self.now + self.taken[i], self.steps, self.model]

    def fill_buffer(self, key):
        """The clients that upload next, ascending. As the server does, it takes the client with
        the smallest number of a draw among those that neither train nor have uploaded."""
        busy, uploads = {client for client, *_ in self.running}, []
        for key_draw in jax.random.split(key, BUFFER):
            done = min(self.running, key=lambda client: client[1])
            uploads.append(done)
            self.now = done[1]
            draw = np.asarray(jax.random.uniform(key_draw, (CLIENTS,)))
            following = min(set(range(CLIENTS)) - busy, key=lambda i: draw[i])  # noqa: B023
            busy.add(following)
            self.running[self.running.index(done)] = self.begun(following)
        return sorted(uploads, key=lambda client: client[0])

    def learn(self, uploads):
        """The server's step, with what `upload` makes of each client's model."""
        shares = [RATE / BUFFER / np.sqrt(1 + self.steps - since) for _, _, since, _ in uploads]
        for share, (i, _, _, sent) in zip(shares, uploads, strict=True):
            self.model = jax.tree.map(
                lambda w, old, new: w + share * (new - old),  # noqa: B023
                self.model,
                sent,
                upload(i, sent),
            )
        self.steps += 1


def upload(i, model):
    """What client i makes of a model."""
    return jax.tree.map(lambda leaf: 0.9 * leaf + 0.1 * i, model)


def test_the_server_learns_as_in_a_simulation_of_events():
    server, state = server_and_state()
    begin_round, aggregate = jax.jit(server.begin_round), jax.jit(server.aggregate)
    download, of_clients = jax.jit(server.download), jax.jit(jax.vmap(upload))
    _, key_clients, key_plan = jax.random.split(jax.random.key(0), 3)
    ids = draw_clients(key_clients, CLIENTS, CONCURRENCY).tolist()
    events, staleness = Events(state, ids), []
    key = key_plan
    for number in range(8):
        before = events.now
        uploads = events.fill_buffer(key)
        assert state.uploads.ids.tolist() == [client for client, *_ in uploads]
        seconds = float(server.seconds(state))
        np.testing.assert_allclose(seconds, events.now - before, rtol=1e-4)
        staleness += [events.steps - since for _, _, since, _ in uploads]
        begun = begin_round(state, key)
        ids = server.sample(state, jnp.ones(CLIENTS), BUFFER, key)
        received = [download(begun, 0, i) for i in ids]
        for ours, (_, _, _, theirs) in zip(received, uploads, strict=True):
            jax.tree.map(_assert_near, ours, theirs)
        sent = of_clients(ids.astype(jnp.float32), stack(received))
        key = jax.random.key(100 + number)
        state = aggregate(begun, (Cohort(ids, jnp.ones(BUFFER)),), (sent,), key)
        events.learn(uploads)
        jax.tree.map(_assert_near, state.model, events.model)
        jax.tree.map(_assert_near, download(state, 0, ids[0]), events.model)
    assert {0, 1, 2} <= set(staleness)


@pytest.mark.slow
def test_with_one_client_at_a_time_the_server_steps_to_each_model():
    """Nothing is stale, and with eta_g = 1 the server takes the model of the client."""
    config = small_config(
        "fedbuff",
        cohort_size=1,
        algorithm__fedbuff_concurrency=1,
        hparams__server_lr=1.0,
    )
    experiment = build_experiment(config, federation())
    server = experiment.build(experiment.hparams, 0).server
    state = server.init(jax.random.key(0), federation().data.graph)
    for number in range(3):
        # The client that trains now began before the last step, so one step is missed.
        begun = server.begin_round(state, jax.random.key(0))
        sent = server.download(begun, 0, state.uploads.ids[0])
        stale = 0 if number == 0 else 1
        assert int(state.steps - state.uploads.steps[0]) == stale
        new = upload(jnp.float32(number), sent)
        cohort = Cohort(state.uploads.ids, jnp.ones(1))
        rows = jax.tree.map(lambda leaf: leaf[None], new)
        after = server.aggregate(begun, (cohort,), (rows,), jax.random.key(number))
        expected = jax.tree.map(
            lambda w, a, b: w + (b - a) / np.sqrt(1 + stale),  # noqa: B023
            state.model,
            sent,
            new,
        )
        jax.tree.map(_assert_near, after.model, expected)
        state = after


def _assert_near(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
