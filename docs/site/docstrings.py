"""The site: below each list of docs/reference/api.md, the docstrings of what it lists.

In a repository, a name of the list leads to its source; in the site, to its docstring.
"""

import re

ROW = re.compile(r"(\| \[`[\w.]*?(\w+)`\])\(\.\./\.\./([\w/]+?)(/__init__)?\.py\)")
OPTIONS = {
    "Result": {"inherited_members": True},
    "Fleet": {"members": ["params", "predictor", "predict", "export"]},
    "Federation": {"members": ["describe", "plot"]},
}


def on_page_markdown(markdown, page, **_):
    """Called by MkDocs with each page: the page as the site shows it."""
    if page.file.src_uri != "reference/api.md":
        return markdown
    lines, listed = [], []
    for line in [*markdown.splitlines(), ""]:
        if row := ROW.match(line):
            listed.append(f"{row[3].replace('/', '.')}.{row[2]}")
            line = ROW.sub(rf"\1[{listed[-1]}]", line)
        lines.append(line)
        if not line:
            lines += [described(name) for name in listed]
            listed = []
    return "\n".join(lines)


def described(name):
    """The directive of mkdocstrings for a full name."""
    options = OPTIONS.get(name.rpartition(".")[2], {})
    return f"::: {name}\n    options: {options}\n"
