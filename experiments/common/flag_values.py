"""Checks of flags: of lists, and of those that nothing reads."""

from collections.abc import Iterable, Sequence

from absl.flags import FLAGS

from graphfl_jax.settings import Choice


def flag_text(name: str) -> str:
    """A flag with its value, as an error states it, in one line."""
    return FLAGS[name].serialize().removeprefix("--").replace("\n", " ")


def refuse_flag(name: str, why: str) -> None:
    """Refuses a flag that is not read; `why` is behind these words.

    Raises:
      ValueError: it is set.
    """
    if FLAGS[name].present:
        raise ValueError(f"{flag_text(name)} is not read{why}")


def check_list(flag: str, words: list[str]) -> None:
    """Checks that a flag lists something, and nothing twice.

    Raises:
      ValueError: the list is empty, or it has an empty or a repeated entry.
    """
    if not all(words) or not words or len(set(words)) < len(words):
        raise ValueError(
            f"{flag}={','.join(words)} is empty, or has an empty or a repeated entry; give "
            f"different names, separated by commas"
        )


def check_names(flag: str, names: Sequence[str], choices: Iterable[str]) -> None:
    """Checks the names that a flag lists.

    Raises:
      ValueError: a name is not one of the choices, or is listed twice.
    """
    choice = Choice(flag, tuple(choices))
    for name in names:
        choice.check(flag, name)
    if len(set(names)) < len(names):
        raise ValueError(f"{flag}={','.join(names)} has a repeated entry; name each once")


def shares(flag: str, words: list[str]) -> list[float]:
    """Different shares in ascending order, with 0 added.

    Raises:
      ValueError: a value is not a number in [0, 1].
    """
    try:
        values = {float(word) for word in words}
    except ValueError:
        values = {-1.0}
    if not all(0 <= value <= 1 for value in values):
        raise ValueError(
            f"{flag}={','.join(words)} has a value outside [0, 1]; set --{flag}=0,0.1,0.2 or "
            f"other shares"
        )
    return sorted({0.0, *values})
