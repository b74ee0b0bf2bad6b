"""Write the pictures and tables of docs/development/architecture.md from the source.

    python docs/make_architecture.py           write the parts of the page between its marks
    python docs/make_architecture.py --check   say whether they are up to date, and exit with 1 if not

A file's line is the first paragraph of its docstring, a folder's that of its `__init__.py`; arrows are imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from generate import between, main
from package_structure import LAYERS, Sources, imports, place, read, summary

PAGE = Path(__file__).resolve().parent / "development" / "architecture.md"
BASE = "base"  # the node that stands for the files of the lowest layer


def files() -> dict[Path, str]:
    """The page by its path."""
    sources = read()
    text = PAGE.read_text(encoding="utf-8")
    for part, made in (("picture", picture(sources)), ("layers", inner_layers()), ("files", tables(sources))):
        text = between(text, f"<!-- {part}: begin -->\n", f"<!-- {part}: end -->\n", made)
    return {PAGE: text}


def picture(sources: Sources) -> str:
    """A Mermaid chart of the package's folders by layer; an arrow that others imply is left out."""
    used: dict[str, set[str]] = {_node(path): set() for path in sources}
    for path, found in imports(sources).items():
        used[_node(path)] |= {_node(one) for one in found} - {_node(path)}
    lines = ["```mermaid", "flowchart TD"]
    for level, layer in reversed(list(enumerate(LAYERS[""]))):
        nodes = sorted({_node(entry) for entry in layer})
        lines += [f'  subgraph layer{level}["layer {level}"]', "    direction LR"]
        lines += [f'    {_id(node)}["{_label(node)}"]' for node in nodes] + ["  end"]
    lines += [f"  {_id(node)} --> {_id(other)}" for node in sorted(used) for other in sorted(_direct(node, used))]
    return "\n".join([*lines, "```", ""])


def _node(path: str) -> str:
    """The folder of a file, or the file where it lies in the package itself."""
    return BASE if path in LAYERS[""][0] else path.split("/")[0]


def _id(node: str) -> str:
    return node.removesuffix(".py").strip("_")


def _label(node: str) -> str:
    return "<br>".join(LAYERS[""][0]) if node == BASE else node if node.endswith(".py") else f"{node}/"


def _direct(node: str, used: Mapping[str, set[str]]) -> set[str]:
    """What a node imports and reaches by no other."""
    return {one for one in used[node] if not any(one in _reached(other, used) for other in used[node] - {one})}


def _reached(node: str, used: Mapping[str, set[str]]) -> set[str]:
    return used[node].union(*(_reached(one, used) for one in used[node]))


def inner_layers() -> str:
    """The layers within each folder that has some, lowest first."""
    rows = [
        f"| `{folder}/` | {' < '.join(', '.join(_words(entry) for entry in layer) for layer in layers)} |"
        for folder, layers in LAYERS.items()
        if folder
    ]
    return "\n".join(["| folder | its layers, lowest first |", "|---|---|", *rows, ""])


def _words(entry: str) -> str:
    return "all others" if entry == "*" else f"`{entry}`" if entry.endswith(".py") else f"`{entry}/`"


def tables(sources: Sources) -> str:
    """A section for each folder, in the order of layers from above, with a line for each file."""
    folders = {path.rpartition("/")[0] for path in sources}
    parts: list[str] = []
    for folder in sorted(folders, key=lambda folder: _rank(folder)):
        parts.append(f"### {folder}/\n" if folder else "### The package itself\n")
        head = sources.get(f"{folder}/__init__.py" if folder else "__init__.py", "")
        if summary(head):
            parts.append(f"{summary(head)}\n")
        rows = [
            f"| `{path.rpartition('/')[2]}` | {summary(text).replace('|', '/')} |"
            for path, text in sources.items()
            if path.rpartition("/")[0] == folder and not path.endswith("__init__.py")
        ]
        parts.append("\n".join(["| file | what it does |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _rank(folder: str) -> tuple[int, str]:
    found = place(f"{folder}/", "") if folder else None
    return (-found[0] if found is not None else -len(LAYERS[""]), folder)


if __name__ == "__main__":
    raise SystemExit(main(files))
