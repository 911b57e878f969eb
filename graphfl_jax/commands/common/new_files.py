"""Checks of the files that a flag names to be written, and names of files."""

from pathlib import Path

from graphfl_jax.runs.disk import why_not_writable


def check_new_file(flag: str, path: Path) -> None:
    """Checks that a file does not exist and can be written; makes nothing.

    Raises:
      ValueError: it exists, or cannot be written.
    """
    if path.exists():
        raise ValueError(f"{flag}={path} exists; remove it, or choose another --{flag}")
    folder = path.absolute().parent
    why = why_not_writable(folder) if folder.is_dir() else f"{folder} is no folder"
    if why:
        raise ValueError(f"{flag}={path} cannot be written ({why}); choose another --{flag}")


def in_file_name(name: str) -> str:
    """The name of a federation as a part of a file's name, which cannot have a slash."""
    return name.replace("/", "-")
