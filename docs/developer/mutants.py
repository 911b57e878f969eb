"""Mutation tests: which small errors in the program and in runs do the tests not notice?

Cosmic Ray (https://cosmic-ray.readthedocs.io) changes one operator, number or condition at a
time and runs the tests of the changed module. It edits files, so use a second working tree:

    pip install cosmic-ray
    git worktree add ../mutated && cd ../mutated
    cosmic-ray init docs/developer/mutants.toml mutants.sqlite
    python docs/developer/mutants.py sample mutants.sqlite
    cosmic-ray exec docs/developer/mutants.toml mutants.sqlite
    cr-report mutants.sqlite --show-diff

`sample` keeps 160 mutants, the same ones for the same code. `test` is what Cosmic Ray calls for
each of them. Run `docs/developer/mutants.py test` with the Python of the project's environment.
"""

import random
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

MUTANTS = 160
# Others mostly replace an operator by one that its operands do not have.
OPERATORS = re.compile(
    "NumberReplacer|AddNot|TrueWithFalse|FalseWithTrue|AndWithOr|OrWithAnd|Delete_Not|"
    "Delete_USub|ExceptionReplacer|ZeroIteration|RemoveDecorator|Continue|Lt_LtE|Lt_GtE|"
    "Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt|LtE_Lt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|Add_Sub|Sub_Add|"
    "Mul_Div|Div_Mul|FloorDiv_Mul"
)
ROUNDS = [
    "program",
    "groups",
    "evaluation",
    "new_clients",
    "identities",
    "resume",
    "reference",
    "contract",
    "new_architectures",
    "monotone",
    "own_parts",
    "track",
]
RUNS = [
    "run",
    "resume",
    "checkpoint",
    "identity",
    "interrupts",
    "models_out",
    "bad_inputs",
    "custom",
    "sweep",
    "contract",
    "new_clients",
    "new_architectures",
    "full_disk",
    "evaluation",
    "distributed",
    "plots",
    "groups",
]
# Of a module: files that notice most of its mutants, and all others that may notice one.
TESTS = {
    "program": (["program", "evaluation", "new_clients", "resume"], ["models_out", *ROUNDS]),
    "core": (["program", "groups", "trainers"], ROUNDS),
    "rounds": (
        ["groups", "program", "evaluation"],
        ["attacks", "architectures", "interfaces", "flha_ghn", *ROUNDS],
    ),
    "trainers": (["trainers", "optimizers", "reference"], ROUNDS),
    "checkpoint": (["checkpoint", "resume"], RUNS),
    "folder": (["run", "resume", "identity"], RUNS),
    "session": (
        ["evaluation", "sweep", "new_clients"],
        ["shards", "executables", "program", *RUNS],
    ),
    "single": (["run", "resume", "new_clients"], RUNS),
}


def sample(database):
    """Keeps `MUTANTS` of a session's mutants, as many per module as it has."""
    with sqlite3.connect(database) as session:
        rows = session.execute(
            "select module_path, operator_name, job_id from mutation_specs "
            "order by module_path, operator_name, occurrence, operator_args"
        )
        modules = {}
        for module, operator, job in rows:
            if OPERATORS.search(operator):
                modules.setdefault(module, []).append(job)
        total, draw, kept = sum(map(len, modules.values())), random.Random(0), set()
        for module, jobs in sorted(modules.items()):
            count = round(MUTANTS * len(jobs) / total)
            kept.update(draw.sample(jobs, count))
            print(f"{module}: {count} of {len(jobs)}")
        places = ",".join("?" * len(kept))
        for table in ("mutation_specs", "work_items"):
            session.execute(f"delete from {table} where job_id not in ({places})", (*kept,))


def test():
    """Runs the tests of the module that differs from the last commit."""
    differing = ["git", "diff", "--name-only", "HEAD", "--", "graphfl_jax"]
    found = subprocess.run(differing, capture_output=True, text=True, check=True)
    (path,) = found.stdout.split()
    first, others = TESTS[re.search(r"(\w+)\.py$", path)[1]]
    for names in (first, [name for name in dict.fromkeys(others) if name not in first]):
        files = [
            str(file) for name in names for file in Path("tests").glob(f"*/test_{name}.py")
        ]
        if status := subprocess.run([sys.executable, "-m", "pytest", "-x", *files]).returncode:
            sys.exit(status)


if __name__ == "__main__":
    {"sample": sample, "test": test}[sys.argv[1]](*sys.argv[2:])
