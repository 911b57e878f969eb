"""Folders of compiled programs: who may write into them, and JAX's cache with checked entries.

Reading an entry can execute code. So a folder must be the user's, and nobody else may write
into it. JAX's own cache does not replace a damaged entry, and does not notice an entry under
the name of another. Here an entry begins with a digest of its key and its content. One that
does not fit is removed, so that JAX compiles the program and writes it again.
"""

import hashlib
import os
import stat
from pathlib import Path

import jax
from jax._src import compilation_cache as cache_of_jax
from jax._src.lru_cache import _CACHE_SUFFIX, LRUCache

DIGEST = 32  # bytes of SHA-256 at the beginning of an entry


class CheckedCache(LRUCache):
    """JAX's cache in a folder, with a digest in every entry."""

    def get(self, key: str) -> bytes | None:
        """The content of an entry, or None if there is none, or not a whole one of this key."""
        entry = super().get(key)
        if entry is None:
            return None
        file = Path(self.path) / f"{key}{_CACHE_SUFFIX}"
        if entry[:DIGEST] == digest(key, entry[DIGEST:]) and is_mine(file):
            return entry[DIGEST:]
        file.unlink(missing_ok=True)
        return None

    def put(self, key: str, value: bytes) -> None:
        """Adds an entry, if there is none."""
        super().put(key, digest(key, value) + value)


def keep_in(folder: Path) -> None:
    """Makes JAX keep the programs that it compiles in a folder, as checked entries.

    Args:
      folder: that `check_private` accepts.
    """
    cache_of_jax.LRUCache = CheckedCache  # JAX makes it when it compiles the first program
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def make_private(folder: Path) -> Path:
    """Makes a folder, and those above it, for the user alone; returns its path without links.

    Raises:
      ValueError: as `check_private`.
      OSError: it cannot be made.
    """
    for part in (*reversed(folder.parents), folder):
        if not part.exists():
            part.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    return folder.resolve()


def check_private(folder: Path) -> None:
    """Checks that a folder is the user's, and that only the user may write into it.

    Nobody else may put another folder into its place: into the folders above it, others may
    write only where the sticky bit keeps them from renaming what is not theirs, as in /tmp.

    Raises:
      ValueError: another user owns it, or may write into it or into a folder above it.
    """
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise ValueError(
            f"compilation_cache={folder} belongs to another user, and its files are executed; "
            f"set --compilation_cache to a folder of yours, or to nothing"
        )
    if status.st_mode & 0o022:
        raise ValueError(
            f"compilation_cache={folder} can be written by others, and its files are executed; "
            f"run chmod go-w {folder}, or set --compilation_cache to another folder"
        )
    for above in dict.fromkeys((*folder.absolute().parents, *folder.resolve().parents)):
        mode = above.stat().st_mode
        if mode & 0o022 and not mode & stat.S_ISVTX:
            raise ValueError(
                f"compilation_cache={folder} is in {above}, into which others can write, and "
                f"its files are executed; run chmod go-w {above}, or set --compilation_cache "
                f"to another folder"
            )


def is_mine(file: int | Path) -> bool:
    """Whether an entry, as a path or as a number of an open file, is of this user."""
    return os.stat(file).st_uid == os.getuid()


def digest(key: str, value: bytes) -> bytes:
    """Of the key too, so that an entry under another's name is refused before it is read."""
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + value).digest()
