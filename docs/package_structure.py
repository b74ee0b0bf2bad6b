"""What the package consists of and what imports what, read from the source without importing it.

The guards in tests/guards check it; docs/make_architecture.py draws it. All paths are relative to the package's folder,
with forward slashes, because file names repeat. Every function works on `Sources`, so a test can pass a planted violation.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "hasten"
Sources = Mapping[str, str]  # relative path -> source text
Graph = Mapping[str, set[str]]  # relative path -> relative paths of what it imports

# The layers of each folder, lowest first. An entry may import from its own entry and from lower layers; entries of one
# layer do not import each other. "*" stands for the files of the folder that are not named.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "": (
        ("errors.py", "folders.py", "safe_text.py", "stats.py", "cgroup.py", "patches.py", "mounts.py"),
        ("protocol.py",),
        ("raw_run.py", "records"),
        ("format.py", "devices", "sandbox"),
        ("agent", "machine"),
        ("launch", "diagnosis", "data", "reports", "workloads"),
        ("optimizations",),
        ("measurement",),
        ("result.py",),
        ("tuning", "notebook.py"),
        ("api.py",),
        ("__init__.py",),
        ("integrations",),
        ("cli",),
        ("__main__.py",),
    ),
    "sandbox": (("*",), ("early",)),
    "launch": (("*",), ("autoload",)),
    "optimizations": (("optimization.py",), ("applicable.py",), ("*",), ("catalog.py",)),
    "data": (
        ("generators.py",),
        ("layout",),
        ("images",),
        ("memo",),
        ("workers",),
        ("epoch",),
        ("loader.py",),
        ("*",),
    ),
    "reports": (("*",), ("page",)),
}


def read(folder: Path = PACKAGE) -> dict[str, str]:
    """The source of every Python file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))
    }


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a source; every guard asks for the same ones."""
    return ast.parse(source)


def module_names(sources: Sources, package: str = "hasten") -> dict[str, str]:
    """The relative path of each module, by its dotted name."""
    return {dotted(path, package): path for path in sources}


def dotted(path: str, package: str = "hasten") -> str:
    """The dotted name of the module in a file."""
    return ".".join((package, *path.removesuffix(".py").split("/"))).removesuffix(".__init__")


# ---------------------------------------------------------------------------------------------------------- imports


def imports(sources: Sources, package: str = "hasten") -> dict[str, set[str]]:
    """The files of the package that each file imports, by any form of import statement."""
    known = module_names(sources, package)
    return {path: set(_imported(path, text, known, package)) - {path} for path, text in sources.items()}


def _imported(path: str, text: str, known: Mapping[str, str], package: str) -> Iterator[str]:
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from (known[alias.name] for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(path, node, package)
            for alias in node.names:
                if origin == package and alias.name == "__version__":
                    continue  # the package's own __init__ has run before any of its modules is imported
                found = known.get(f"{origin}.{alias.name}") or known.get(origin)
                if found is not None:
                    yield found


def _origin(path: str, node: ast.ImportFrom, package: str) -> str:
    """The module that names are imported from; of a relative import as well."""
    if not node.level:
        return node.module or ""
    parts = [package, *path.split("/")[:-1]]
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def self_imports(sources: Sources, package: str = "hasten") -> list[str]:
    """The files that import themselves."""
    known = module_names(sources, package)
    return [path for path, text in sources.items() if path in _imported(path, text, known, package)]


def relative_imports(sources: Sources) -> list[str]:
    """The files with an import that starts with a dot."""
    nodes = ((path, node) for path, text in sources.items() for node in ast.walk(parsed(text)))
    return [path for path, node in nodes if isinstance(node, ast.ImportFrom) and node.level]


def single_importers(graph: Graph) -> dict[str, str]:
    """Modules that exactly one other module imports or names, and that module."""
    importers: dict[str, set[str]] = {path: set() for path in graph}
    for path, used in graph.items():
        for one in used:
            importers[one].add(path)
    return {
        path: next(iter(by)) for path, by in importers.items() if len(by) == 1 and not path.endswith("__init__.py")
    }


# ---------------------------------------------------------------------------------------------------------- strings


def texts(source: str) -> Iterator[str]:
    """The string literals of a file without its docstrings; f-strings with the module's own constants filled in."""
    tree = parsed(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            yield "".join(_part(part, constants) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def _part(part: ast.expr, constants: Mapping[str, str]) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
        return constants.get(part.value.id, "{}")
    return "{}"


def named_modules(sources: Sources, package: str = "hasten") -> dict[str, dict[str, str]]:
    """The files of the package that each file names in a string, and the dotted name as it stands there."""
    known = module_names(sources, package)
    pattern = re.compile(rf"\b{package}(?:\.\w+)+(?::\w+)?")
    return {
        path: {
            known[module]: name
            for text in texts(source)
            for name in pattern.findall(text)
            if (module := _longest(name.partition(":")[0], known)) is not None and known[module] != path
        }
        for path, source in sources.items()
    }


def _longest(name: str, known: Mapping[str, str]) -> str | None:
    """The longest beginning of a dotted name that is a module below the package itself."""
    parts = name.split(".")
    candidates = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((candidate for candidate in candidates if candidate in known), None)


def unresolved_names(sources: Sources, package: str = "hasten") -> list[str]:
    """Strings as "hasten.module:function" that name no function, class or variable of that module."""
    known = module_names(sources, package)
    pattern = re.compile(rf"({package}(?:\.\w+)+):(\w+)")
    wrong: list[str] = []
    for path, source in sources.items():
        for module, name in (found.groups() for found in map(pattern.fullmatch, texts(source)) if found is not None):
            if module not in known or name not in _defined(sources[known[module]]):
                wrong.append(f"{path} names {module}:{name}")
    return wrong


def _defined(source: str) -> set[str]:
    """The names that a module defines or imports at its top level."""
    found: set[str] = set()
    for node in parsed(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


# ----------------------------------------------------------------------------------------------------------- layers


Layers = Mapping[str, tuple[tuple[str, ...], ...]]


def place(path: str, folder: str, layers: Layers = LAYERS) -> tuple[int, str] | None:
    """The layer and the entry of a file in one folder's table; None where the table has no place for it."""
    rest = path.removeprefix(folder + "/") if folder else path
    entries = {entry: level for level, layer in enumerate(layers[folder]) for entry in layer}
    entry = rest.split("/")[0]
    if entry not in entries and "/" not in rest:
        entry = "*"
    return (entries[entry], entry) if entry in entries else None


def table_folders(path: str, layers: Layers = LAYERS) -> list[str]:
    """The folders with a table of layers that a file lies in, outermost first."""
    parts = path.split("/")[:-1]
    return [folder for folder in ("/".join(parts[:count]) for count in range(len(parts) + 1)) if folder in layers]


def goes_up(path: str, used: str, layers: Layers = LAYERS) -> bool:
    """Whether a file that uses another one breaks the order of layers."""
    for folder in table_folders(path, layers):
        if folder not in table_folders(used, layers):
            return False
        mine, theirs = place(path, folder, layers), place(used, folder, layers)
        if mine is None or theirs is None:
            return True  # what has no place may not be used
        if mine[1] != theirs[1]:
            return theirs[0] >= mine[0]
    return False


def wrong_imports(sources: Sources, layers: Layers = LAYERS) -> list[str]:
    """Imports that go up or sideways."""
    graph = imports(sources)
    return [f"{path} imports {used}" for path in graph for used in sorted(graph[path]) if goes_up(path, used, layers)]


def wrong_names(sources: Sources, layers: Layers = LAYERS) -> list[str]:
    """Modules that are named in a string and lie higher or sideways."""
    named = named_modules(sources)
    return [f"{path} names {used}" for path in named for used in sorted(named[path]) if goes_up(path, used, layers)]


def without_place(sources: Sources, layers: Layers = LAYERS) -> list[str]:
    """Files that a table of layers does not know, and entries of a table without a file."""
    wrong = [
        f"{path} has no layer in {folder or 'the package'}"
        for path in sources
        for folder in table_folders(path, layers)
        if place(path, folder, layers) is None
    ]
    for folder, table in layers.items():
        used = {place(path, folder, layers) for path in sources if folder in table_folders(path, layers)}
        there = {found[1] for found in used if found is not None}
        wrong += [
            f"{folder or 'the package'} has no {entry}" for layer in table for entry in layer if entry not in there
        ]
    return [one for one in wrong if not one.endswith("has no *")]


# ------------------------------------------------------------------------------------------------------------ files


def long_files(sources: Sources, limit: int = 400) -> dict[str, int]:
    """Files with more lines than the limit."""
    lengths = {path: len(text.splitlines()) for path, text in sources.items()}
    return {path: length for path, length in lengths.items() if length > limit}


def summary(source: str) -> str:
    """The first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(parsed(source)) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def importers_of_package(folder: Path, scripts: list[str], package: str = "hasten") -> list[str]:
    """Scripts of a folder that import the package or name it for an import; also through the modules beside them."""
    seen: set[str] = set()
    todo = list(scripts)
    wrong: list[str] = []
    while todo:
        name = todo.pop()
        if name in seen or not (folder / name).is_file():
            continue
        seen.add(name)
        source = (folder / name).read_text(encoding="utf-8")
        modules = _all_modules(source)
        todo += [f"{module.partition('.')[0]}.py" for module in modules]
        if any(re.fullmatch(rf"{package}(\.\w+)*(:\w+)?", module) for module in (*modules, *texts(source))):
            wrong.append(name)
    return sorted(wrong)


def _all_modules(source: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # Of a relative import the names may be modules beside the script.
            found += [node.module] if node.module else [alias.name for alias in node.names]
    return found


# -------------------------------------------------------------------------------------------- in the user's process


def packages_needed(sources: Sources, starts: list[str], package: str = "hasten") -> dict[str, set[str]]:
    """What is imported from outside the standard library as soon as these files are, by package: the files that do.

    Imports within functions count for nobody: they come later, or never. The `__init__.py` of every folder counts.
    """
    known = module_names(sources, package)
    found: dict[str, set[str]] = {}
    seen: set[str] = set()
    todo = list(starts)
    while todo:
        path = todo.pop()
        if path in seen or path not in sources:
            continue
        seen.add(path)
        parts = path.split("/")
        todo += ["/".join([*parts[:count], "__init__.py"]) for count in range(len(parts))]
        for module in _at_import(parsed(sources[path]).body):
            top = module.partition(".")[0]
            if top == package:
                todo += [known[name] for name in (module, module.rpartition(".")[0]) if name in known][:1]
            elif top not in sys.stdlib_module_names:
                found.setdefault(top, set()).add(path)
    return found


def _at_import(body: list[ast.stmt]) -> Iterator[str]:
    """The modules that statements import as they run; names imported from a module may be modules, too."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            inner = [] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ast.iter_child_nodes(node)
            yield from _at_import([one for one in inner if isinstance(one, ast.stmt)])
            if isinstance(node, ast.Try):
                yield from (name for handler in node.handlers for name in _at_import(handler.body))


def uses_of(sources: Sources, name: str) -> list[str]:
    """The files whose code, not whose strings, names an attribute of a module, as "torch.cuda"."""
    owner, _, attribute = name.partition(".")
    return [
        path
        for path, source in sources.items()
        for node in ast.walk(parsed(source))
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == name)
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(name))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == owner
            and attribute in [one.name for one in node.names]
        )
        or (isinstance(node, ast.Import) and any(one.name.startswith(name) for one in node.names))
    ]
