"""The commands of ``graphfl``. Each is a module with a function `start`.

A command defines its flags when it is imported, and commands share names of flags. So a process
imports one command. The first line of a command's docstring describes it in ``graphfl --help``.
"""

COMMANDS = (
    "run",
    "report",
    "compare",
    "track",
    "export",
    "predict",
    "sweep",
    "leaderboard",
    "list",
    "completion",
)
CONFIGURED = ("run", "sweep")  # a word after them is the name of a configuration
# Commands that need a checkout: each is a module of `experiments`.
OF_A_CHECKOUT = ("tables", "figures", "robustness", "theory", "bench", "soak", "search")
