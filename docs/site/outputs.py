"""Runs the commands of pages, and renews the outputs that follow them.

    python docs/site/outputs.py README.md docs/guide/recipes.md

The blocks of a page that are Python, or have commands of graphfl, are run in their order in an
empty folder, without pip. A block marked as text, directly below one, gets what it printed.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def renewed(page: str) -> str:
    """The text of a page with new outputs.

    Raises:
      RuntimeError: a block failed.
    """
    parts, end, printed = [], 0, None
    with tempfile.TemporaryDirectory() as folder:
        for block in BLOCK.finditer(page):
            language, code = block.groups()
            code = re.sub(r"^pip .*$", "", code, flags=re.MULTILINE)
            if language == "text" and printed is not None:
                parts += [page[end : block.start(2)], printed]
                end, printed = block.end(2), None
            elif language == "python":
                printed = run([sys.executable, "-c", code], folder)
            elif not language and re.search(r"^graphfl ", code, re.MULTILINE):
                printed = run(["bash", "-c", code], folder)
            else:
                printed = None
    return "".join([*parts, page[end:]])


def run(words: list[str], folder: str) -> str:
    """What a command prints, as in a terminal of 80 columns."""
    made = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | {"COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(f"$ {words[-1]}{made.stdout}", flush=True)
    if made.returncode not in (0, 1):  # 1: a run diverged
        raise RuntimeError(f"status {made.returncode}")
    return "".join(f"{line.rstrip()}\n" for line in made.stdout.strip("\n").splitlines())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(renewed(Path(name).read_text()))
