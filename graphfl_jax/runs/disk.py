"""Writing to a disk that is full or read-only: errors in one line, with the file and remedy."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it writable"),
    errno.ELOOP: "remove the link",
    errno.EFBIG: "raise the limit of file sizes, ulimit -f",
}


class WriteError(OSError):
    """A file could not be written. Files that were complete before still are."""


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[None]:
    """Names the file and the remedy in an error of the block that writes it.

    Raises:
      WriteError: the block raised an OSError. It has the same number, and one line of text.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        remedy = REMEDIES.get(error.errno, "check the disk")
        raised = WriteError(f"{path} cannot be written ({error.strerror or error}); {remedy}")
        raised.errno = error.errno
        raise raised from error


def why_not_writable(folder: Path) -> str:
    """Why no file can be made in a folder, or in the folder that it will be made in.

    Returns:
      The reason; empty if nothing is known to prevent it.
    """
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not existing.is_dir():
        return f"{existing} is a file"
    if not os.access(existing, os.W_OK):
        return f"{existing} is not writable"
    disk, is_root = os.statvfs(existing), os.geteuid() == 0  # who may use reserved blocks too
    if disk.f_blocks and not (disk.f_bfree if is_root else disk.f_bavail):
        return "its disk is full"
    if disk.f_files and not (disk.f_ffree if is_root else disk.f_favail):  # some count none
        return "its file system has no free inode"
    return ""
