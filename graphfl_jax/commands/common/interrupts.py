"""Interrupts: SIGINT (Ctrl-C) and SIGTERM end a command at once, with one line on how to go on.

Python runs its handlers of signals between two of its instructions, so only after a compilation
or a round has ended. Therefore a thread waits for the numbers of the signals, see
`signal.set_wakeup_fd`, and ends the process. It may do so at any moment: a file that is
replaced is the old or the new one, and a line that is cut off is written again when the run or
the sweep is resumed.

This module is imported before all others, so it imports little. What the
thread needs is among it: the signal may find the main thread in an import, which then holds
locks of modules for ever, so the thread must not import anything.
"""

import atexit
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 3  # seconds that the processes of this one have to end
_leaving = threading.Lock()
_watched: list[signal.Signals] = []
_marker: Path | None = None
_words: tuple[str, ...] | None = ()
_status: int | None = None
_temporary: set[str] = set()


def install() -> None:
    """Begins to watch for signals. A signal that the parent ignores stays ignored.

    A job that a shell script starts in the background ignores SIGINT.
    """
    _watched.extend(
        number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
    )
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watch_again()
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
    atexit.register(_end)  # the first, so it is called after all others


def watch_again() -> None:
    """Takes back the signals, after a library has installed handlers of its own."""
    for number in _watched:
        signal.signal(number, lambda number, frame: _leave(number))


def note_end(status: int) -> None:
    """States that the command ends with an exit status.

    Python then calls what is registered for its end, and removes no objects after that. This
    takes long, and a signal during it would end the process in another way.
    """
    global _status
    _status = status


def resumable(*words: str, marker: Path) -> None:
    """States how what this process has done is continued.

    Args:
      words: that the same command needs then, such as ``--resume``.
      marker: a file or folder that exists as soon as there is something to continue.
    """
    global _marker, _words
    _marker, _words = marker, words


def mark_unfinished(path: Path) -> None:
    """States a file that has the first results of this process, which cannot be continued."""
    global _marker, _words
    _marker, _words = path, None


@contextlib.contextmanager
def temporary_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """A folder that is removed at the end, also after a signal.

    Args:
      prefix: of its name.
      within: the folder that has it; None is the folder for temporary files.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=within) as folder:
        _temporary.add(folder)
        try:
            yield Path(folder)
        finally:
            _temporary.discard(folder)


def how_to_continue() -> str:
    """The command that goes on after this process has ended, with what it finds."""
    typed = {_flag(word) for word in sys.orig_argv if word.startswith("-")}
    if _marker is None or not _marker.exists():
        return f"nothing was written; start again with: {_command()}"
    if _words is None:
        return f"{_marker} has the first results; start again with: {_command()}"
    return f"continue with: {_command(*(w for w in _words if _flag(w) not in typed))}"


def _flag(word):
    return word.lstrip("-").partition("=")[0]


def _command(*words):
    typed = sys.orig_argv[1:]
    graphfl = Path(typed[0]).name == "graphfl"  # else a module, as in python -m experiments.run
    return shlex.join([*(("graphfl", *typed[1:]) if graphfl else ("python", *typed)), *words])


def _watch(reader):
    while (number := os.read(reader, 1)[0]) not in _watched:
        pass
    _leave(number)


def _end():
    with contextlib.suppress(OSError):  # nobody reads, and Python reports it
        sys.stdout.flush()
        sys.stderr.flush()
        if _status is not None:
            os._exit(_status)


def _leave(number):
    """Ends this process and those that it has started."""
    if not _leaving.acquire(blocking=False):
        threading.Event().wait()  # another thread is here
    shown = "\x1b[?25h\n" if os.isatty(2) else ""  # a progress bar hides the cursor
    line = f"{shown}interrupted by {signal.Signals(number).name}; {how_to_continue()}\n"
    with contextlib.suppress(OSError):  # nobody reads
        os.write(2, line.encode(errors="surrogateescape"))
    children = psutil.Process().children(recursive=True)
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in children:
            child.terminate()
    for child in psutil.wait_procs(children, PATIENCE)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    for folder in _temporary:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(128 + number)
