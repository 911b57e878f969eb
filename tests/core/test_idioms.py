"""Names and idioms that hide what is meant are not used in the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("graphfl_jax", "experiments", "configs", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
# Names that say nothing of what they hold.
EMPTY = {"own", "found", "given", "one"}
LONGEST = 60  # lines of a function
# Where factories of methods are, whose functions read their settings as closures.
FACTORIES = "graphfl_jax/algorithms"


def nodes_of(path):
    return ast.walk(ast.parse(path.read_text()))


def names_in(node):
    """The names that a node binds."""
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return []


def is_condition(node):
    """Whether a factor is true or false, and not a number."""
    if isinstance(node, ast.Compare | ast.BoolOp):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("bool", "any", "all", "isinstance")
    return False


def is_text_or_list(node):
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


def faults_in(path):
    """What a file has of these: the line, and what it is."""
    for node in nodes_of(path):
        for name in EMPTY.intersection(names_in(node)):
            yield node.lineno, f"the name {name}"
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List):
            yield node.lineno, "a literal with a star"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (node.left, node.right)
            if any(map(is_text_or_list, sides)) and any(map(is_condition, sides)):
                yield node.lineno, "a text or list times a condition"


@pytest.mark.parametrize("folder", ["graphfl_jax", "experiments", "configs", "examples"])
def test_names_and_idioms_say_what_is_meant(folder):
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] == folder]
    faults = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in files
        for line, what in sorted(faults_in(path))
    ]
    assert faults == []


def test_functions_are_short_enough_to_be_read():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in FILES
        if not str(path.relative_to(ROOT)).startswith(FACTORIES)
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST
    ]
    assert long == []
