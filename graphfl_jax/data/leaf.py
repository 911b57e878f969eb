"""FEMNIST and Shakespeare of LEAF: clients are the writers, and the speaking roles.

Caldas, Duddu, Wu, Li, Konecny, McMahan, Smith, Talwalkar. LEAF: A Benchmark for Federated
Settings. 2018. https://arxiv.org/abs/1812.01097. FEMNIST is the 62 digits and letters of
Cohen, Afshar, Tapson, van Schaik, EMNIST: an extension of MNIST to handwritten letters, 2017.
Shakespeare is the next character of a line from the 80 before it, as in McMahan, Moore, Ramage,
Hampson, Aguera y Arcas, Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017.

Each data set is read from the folders train and test that LEAF's preprocess.sh writes with
``-t sample``, or from the two HDF files of TensorFlow Federated, which were made from them. The
split is that of the files; validation examples are drawn from the training examples. The
clients have no relations.

Images have a light background. Their numbers from 0 to 1 are kept as bytes, as they were in the
scans. Characters are numbers of places in `CHARACTERS`, also kept as bytes; any other character
is read as a space. The HDF file of Shakespeare has passages; as LEAF does with lines, every
character of a passage is an example, and spaces stand before the first one.
"""

import functools
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from graphfl_jax.data import drawn_patterns, files, relations
from graphfl_jax.data.common_settings import GeneratorSeed, ValFraction, forms
from graphfl_jax.data.federation import Federation, federate
from graphfl_jax.data.leaf_json import Arrays, read_users
from graphfl_jax.data.splits import RandomSplit, split_training
from graphfl_jax.settings import Integer

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase  # of FEMNIST
CHARACTERS = "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase
CHARACTERS += "[]" + string.ascii_lowercase + "}"
PAST = 80  # characters of an example
SIDE = 28  # of an image
SIMULATED, MOST_SIMULATED = 30, 1000  # clients: by default, and at most
SLANT = 0.5  # of simulated writers, at most: columns per row
SPOKEN = 250  # characters of a simulated role
LETTERS = 20  # that simulated roles speak
_SPACE = CHARACTERS.index(" ")
_NUMBERS = np.full(128, _SPACE, np.uint8)  # of characters; the last one is none
_NUMBERS[list(CHARACTERS.encode())] = np.arange(len(CHARACTERS))

MostClients = Annotated[int, Integer("First clients to load; 0 loads all.", low=0)]
MinExamples = Annotated[
    int, Integer("Clients with fewer training examples in the files are left out.")
]
MostExamples = Annotated[
    int,
    Integer(
        "Largest number of examples of a client in each split, at random; 0 is all.", low=0
    ),
]


class Corpus(NamedTuple):
    """What is known of a data set of LEAF."""

    name: str
    about: str  # its line in lists
    outputs: int
    labels: tuple[str, ...]
    hdf: tuple[str, str]  # files of training and test examples
    from_json: Callable[[list, list], Arrays]
    from_hdf: Callable  # group of a client -> x, y
    simulate: Callable  # (rng, clients) -> client -> part -> x, y


def _loader(corpus: Corpus):
    """The loader of a data set. Both have the same settings.

    A loader returns one client per user. It raises a ValueError if a file is damaged or
    foreign or no client is left, and a FileNotFoundError if a file is missing.
    """

    def load(
        *,
        root,
        source: Annotated[str, forms("real", "simulated")] = "auto",
        clients: MostClients = 0,
        min_examples: MinExamples = 10,
        cap: MostExamples = 0,
        val_fraction: ValFraction = 0.0,
        generator_seed: GeneratorSeed = 0,
        seed,
    ) -> Federation:
        parts = _find(corpus, Path(root) / corpus.name, source)
        if parts is None:
            if clients > MOST_SIMULATED:
                raise ValueError(
                    f"data.clients={clients} exceeds {MOST_SIMULATED} simulated clients; set "
                    f"--config.data.clients={MOST_SIMULATED} or less"
                )
            rng = np.random.default_rng(generator_seed)
            users, few = corpus.simulate(rng, clients or SIMULATED), 0
        else:
            users, few = _choose(corpus, parts, clients, min_examples)
        users = {user: _cap(users[user], cap, [seed, i]) for i, user in enumerate(users)}
        rows = [np.concatenate([x for x, _ in of.values()]) for of in users.values()]
        splits = [
            split_training(
                np.repeat([*of], [len(y) for _, y in of.values()]),
                i,
                RandomSplit(seed, val_fraction),
            )
            for i, of in enumerate(users.values())
        ]
        notes = [f"the first {len(users)} clients"] if parts and clients else []
        notes += [f"without {few} clients of fewer than {min_examples} examples"] if few else []
        notes += [f"at most {cap} examples of a split per client"] if cap else []
        return federate(
            tuple(users),
            x=rows,
            y=[np.concatenate([y for _, y in of.values()]) for of in users.values()],
            graph=relations.from_edges(len(users), ()),
            task="classification",
            outputs=corpus.outputs,
            labels=corpus.labels,
            name=corpus.name,
            source="real" if parts else "simulated",
            split=splits,
            extent=", ".join(notes),
        )

    load.__name__ = load.__qualname__ = corpus.name
    load.__doc__ = corpus.about
    return load


def _find(corpus, folder, source):
    """A function for each part that gives its users, or None if data are to be simulated."""
    if source == "simulated":
        return None
    hdf = [folder / name for name in corpus.hdf]
    if any(file.is_file() for file in hdf) and not (folder / "train").is_dir():
        wanted = hdf
        read = [functools.partial(_read_hdf, file, corpus.from_hdf) for file in hdf]
    else:
        wanted = [folder / part for part in ("train", "test")]
        read = [functools.partial(read_users, part, corpus.from_json) for part in wanted]
    for path in wanted:
        if not (path.is_file() or any(path.glob("*.json"))):
            return files.report_missing(
                corpus.name,
                f"no {'file' if path in hdf else 'JSON file in'} {path}",
                f"put train/ and test/ of LEAF, or {' and '.join(corpus.hdf)}, into {folder}",
                folder=folder,
                required=source == "real",
                stand_in="data are simulated",
            )
    return dict(zip(("train", "test"), read, strict=True))


def _read_hdf(path, convert) -> Iterator[tuple[str, Arrays]]:
    """The users of a file of TensorFlow Federated; each is a group in the group examples."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            for user, group in file["examples"].items():
                x, y = convert(group)
                if len(x) != len(y):
                    raise ValueError(f"client {user!r} has {len(x)} inputs, {len(y)} labels")
                yield user, (x, y)
    except (AttributeError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).strip("\"'").split())
        raise ValueError(
            f"{path}: the file has no examples of clients ({why}); use the file of TensorFlow "
            "Federated"
        ) from error


def _choose(corpus, parts, clients, min_examples):
    """The users to load, with {"train": (x, y), "test": (x, y)}, and how many were left out."""
    chosen, few = {}, 0
    for user, arrays in parts["train"]():
        if user in chosen:
            raise ValueError(
                f"{corpus.name}: user {user!r} is in two training files; remove one of them"
            )
        few += len(arrays[1]) < min_examples
        if len(arrays[1]) >= min_examples:
            chosen[user] = {"train": arrays}
        if len(chosen) == clients > 0:
            break
    if not chosen or clients > len(chosen):
        raise ValueError(
            f"data.clients={clients}: {corpus.name} has {len(chosen)} clients of at least "
            f"data.min_examples={min_examples} training examples; set a smaller "
            f"--config.data.{'clients' if chosen else 'min_examples'}"
        )
    left = set(chosen)
    for user, arrays in parts["test"]():
        if user in left and len(arrays[1]):
            chosen[user]["test"] = arrays
            left.remove(user)
        if not left:
            return chosen, few
    raise ValueError(
        f"{corpus.name}: client {min(left)!r} has no test examples; make the files with "
        "preprocess.sh -t sample"
    )


def _cap(of_user, cap, seed):
    """At most `cap` random examples of each split of a user."""
    if not cap:
        return of_user
    capped = {}
    for number, (part, (x, y)) in enumerate(of_user.items()):
        rows = np.random.default_rng([*seed, cap, number]).permutation(len(y))[:cap]
        capped[part] = x[rows], y[rows]
    return capped


def _images(x, y) -> Arrays:
    """Images [n, 28, 28, 1] uint8 of rows of 784 numbers from 0 to 1, and labels [n]."""
    x, y = np.asarray(x, float).reshape(-1, SIDE**2), np.asarray(y, float)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} images of {SIDE**2} pixels for {len(y)} labels")
    if not ((x >= 0) & (x <= 1)).all():  # false for NaN
        raise ValueError("pixels outside of 0 to 1")
    return np.rint(255 * x).astype(np.uint8).reshape(-1, SIDE, SIDE, 1), y


def _characters(text: str) -> np.ndarray:
    """The numbers of characters [n]."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    return _NUMBERS[np.minimum(codes, len(_NUMBERS) - 1)]


def _lines(x, y) -> Arrays:
    """Characters [n, 80] of strings, and the next ones [n]."""
    if any(len(text) != PAST for text in x) or any(len(text) != 1 for text in y):
        raise ValueError(f"x without {PAST} characters, or y without one")
    return _characters("".join(x)).reshape(-1, PAST), _characters("".join(y)).astype(int)


def _windows(text: np.ndarray) -> Arrays:
    """Every character [n] of a text with the 80 before it."""
    padded = np.concatenate([np.full(PAST, _SPACE, np.uint8), text])
    return np.lib.stride_tricks.sliding_window_view(padded[:-1], PAST), text.astype(int)


def _passages(group) -> Arrays:
    """All characters of the passages of a client."""
    texts = [_windows(_characters(files.text_of(text))) for text in group["snippets"][()]]
    x, y = zip(*texts, strict=True)
    return np.concatenate(x), np.concatenate(y)


def _draw_writers(rng, clients):
    """Writers with equal numbers of the images of `drawn_patterns`, slanted as they write."""
    x, y = drawn_patterns.draw(rng, classes=len(CLASSES), shape=(SIDE, SIDE, 1))
    train = np.arange(len(y)) < drawn_patterns.TRAIN
    users = {f"writer {i}": {} for i in range(clients)}
    for part, rows in (("train", train), ("test", ~train)):
        rows = np.array_split(np.flatnonzero(rows), clients)
        for i, of_writer in zip(users, rows, strict=True):
            users[i][part] = x[of_writer], y[of_writer]
    rows = np.arange(SIDE) - (SIDE - 1) / 2
    for of in users.values():
        shifts = np.rint(rng.uniform(-SLANT, SLANT) * rows).astype(int)
        columns = (np.arange(SIDE) - shifts[:, None]) % SIDE  # [rows, columns]
        for part, (images, labels) in of.items():
            of[part] = images[:, np.arange(SIDE)[:, None], columns], labels
    return users


def _draw_roles(rng, clients):
    """Roles that speak by Markov chains of letters, half of each common to all."""
    letters = _characters(string.ascii_lowercase[:LETTERS])
    common = rng.dirichlet(np.full(LETTERS, 0.1), LETTERS)
    users = {}
    for i in range(clients):
        chances = (common + rng.dirichlet(np.full(LETTERS, 0.1), LETTERS)) / 2
        ends = np.cumsum(chances, axis=1)
        text, letter = [], 0
        for draw in rng.uniform(0, ends[:, -1].min(), SPOKEN):
            letter = int(np.searchsorted(ends[letter], draw, side="right"))
            text.append(letters[letter])
        x, y = _windows(np.array(text))
        train = np.arange(SPOKEN) < 0.8 * SPOKEN
        users[f"role {i}"] = {"train": (x[train], y[train]), "test": (x[~train], y[~train])}
    return users


femnist = _loader(
    Corpus(
        "femnist",
        "FEMNIST of LEAF, or drawn images of as many classes, by writer.",
        len(CLASSES),
        tuple(CLASSES),
        ("fed_emnist_train.h5", "fed_emnist_test.h5"),
        _images,
        lambda group: _images(group["pixels"][()], group["label"][()]),
        _draw_writers,
    )
)
shakespeare = _loader(
    Corpus(
        "shakespeare",
        "Shakespeare of LEAF, or simulated text, by speaking role.",
        len(CHARACTERS),
        (),
        ("shakespeare_train.h5", "shakespeare_test.h5"),
        _lines,
        _passages,
        _draw_roles,
    )
)
