"""What pages, metadata and scripts claim, held against the code: functions over texts, so that a test can plant a lie."""

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

SYSTEM_FOLDERS = {"dev", "proc", "sys", "usr"}  # the same on every machine
PLACEHOLDER = re.compile(r"[A-Z][A-Z_,]*|[a-z](,[a-z])*")  # a word that stands for a value


# ------------------------------------------------------------------------------------------------------------ pages


def without_code(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def headings(text: str, level: int) -> list[str]:
    return re.findall(rf"^{'#' * level} (.+)$", without_code(text), re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    found = (heading.lower() for level in (1, 2, 3) for heading in headings(text, level))
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading)).strip("-") for heading in found}


def broken_links(page: Path) -> list[str]:
    """Links within the repository that lead to no file, or to no heading of it."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, section = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        if not other.exists() or (section and section not in anchors(other.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


def personal_places(text: str) -> list[str]:
    """Absolute paths that are not the same on every machine."""
    words = re.sub(r"\w+://\S+", "", text)
    found = re.findall(r"(?<![\w.~*}/)\]>-])/([a-z][\w.-]*)/[\w.-]", words) + re.findall(r"\b([A-Z]:\\)", words)
    return [place for place in found if place not in SYSTEM_FOLDERS | {"path"}]


def missing_files(page: str, root: Path) -> list[str]:
    """Files that a page names and the repository lacks, and names "`NAME` in `file`" that the file does not hold."""
    paths = re.findall(r"`((?:benchmarks|docs|tests|src|\.ci)/[\w./*-]+)`", page)
    names = re.findall(r"`(\w+\.py)`", page)
    known = {path.name for folder in ("src", "docs", "tests", "benchmarks") for path in (root / folder).rglob("*.py")}
    held = re.findall(r"`(\w+)` (?:in|of) `((?:src|docs|tests)/[\w./]+\.py)`", page)
    return [
        *(path for path in paths if not list(root.glob(path))),
        *(name for name in names if name not in known),
        *(
            f"{name} of {path}"
            for name, path in held
            if (root / path).is_file() and not re.search(rf"\b{name}\b", (root / path).read_text(encoding="utf-8"))
        ),
    ]


def outside_navigation(docs: Path, mkdocs: str) -> list[str]:
    """Pages that mkdocs' navigation lacks, and entries of it without a page."""
    named = re.findall(r"^ +- .+: (\S+\.md)$", mkdocs, re.MULTILINE)
    return sorted({*named} ^ {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")})


# --------------------------------------------------------------------------------------------------------- commands


def verbs_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return groups[0].choices


def undocumented_options(parser: argparse.ArgumentParser, index: str, readme: str) -> list[str]:
    """Verbs without a section or a mention, and options that no page explains."""
    verbs = verbs_of(parser)
    missing = [verb for verb in verbs if f"## hasten {verb}" not in index or f"hasten {verb}" not in readme]
    options = {option for verb in verbs.values() for action in verb._actions for option in action.option_strings}
    return missing + [option for option in sorted(options - {"-h", "--help"}) if f"`{option}" not in index]


def commands_in(page: str) -> Iterator[str]:
    """The command lines of hasten in a page's code, without comments and brackets."""
    fences = re.findall(r"^```\w*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", without_code(page))
    for line in (*(line for fence in fences for line in fence.splitlines()), *spans):
        found = re.match(r"(?:\S*bin/)?hasten ([a-z-].*)", line.strip())
        if found is not None:
            yield re.sub(
                r"\[options\]|\[its arguments \.\.\.\]|[\[\]]|\s#.*|\s{2,}\S.*|\.\.\.", " ", found[1]
            ).strip()


def wrong_commands(page: str, parser: argparse.ArgumentParser) -> list[str]:
    """Command lines of a page that the command would refuse."""
    return [command for command in commands_in(page) if not _is_taken(command.split(), parser)]


def _is_taken(words: list[str], parser: argparse.ArgumentParser) -> bool:
    verb, rest = words[0], words[1:]
    if verb == "help":
        return not rest or bool(PLACEHOLDER.fullmatch(rest[0])) or rest[0] in verbs_of(parser)
    if verb.startswith("-"):
        return not rest and any(verb in action.option_strings for action in parser._actions)
    if verb not in verbs_of(parser):
        return False
    options = verbs_of(parser)[verb]._option_string_actions
    ends_in_script = any(action.nargs == argparse.REMAINDER for action in verbs_of(parser)[verb]._actions)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if ends_in_script:
                return True  # what follows belongs to the script
            continue
        name, _, value = word.partition("=")
        action = options.get(name)
        if action is None:
            return False
        if action.nargs is None:  # takes one value
            value = value or (rest.pop(0) if rest else "")
            if not (value and (PLACEHOLDER.fullmatch(value) or _converts(value, action))):
                return False
    return True


def _converts(value: str, action: argparse.Action) -> bool:
    try:
        made = action.type(value) if callable(action.type) else value
    except (argparse.ArgumentTypeError, ValueError):
        return False
    return action.choices is None or made in action.choices


# ------------------------------------------------------------------------------------------------------------- JSON


def printed_keys(source: str) -> dict[str, set[str]]:
    """The keys of every object that a function prints by `print_json`, by the function's name.

    A value is followed through the names of its function; a call whose keys cannot be read has none.
    """
    found: dict[str, set[str]] = {}
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print_json":
                found.setdefault(function.name, set()).update(_keys(call.args[0], function, set()))
    return found


def _keys(value: ast.expr, function: ast.FunctionDef, seen: set[str]) -> Iterator[str]:
    for node in _outer(value):
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant))
        elif isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            for made in ast.walk(function):
                if isinstance(made, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == node.id for target in made.targets
                ):
                    yield from _keys(made.value, function, seen)


def _outer(value: ast.expr) -> Iterator[ast.expr]:
    """The expressions that the value itself may be; of a dict, also what is unpacked into it."""
    yield value
    inner: list[ast.expr] = []
    if isinstance(value, ast.IfExp):
        inner = [value.body, value.orelse]
    elif isinstance(value, ast.ListComp):
        inner = [value.elt]
    elif isinstance(value, ast.List):
        inner = value.elts
    elif isinstance(value, ast.Subscript):
        inner = [value.value]
    elif isinstance(value, ast.Dict):
        inner = [part for key, part in zip(value.keys, value.values, strict=True) if key is None]
    for one in inner:
        yield from _outer(one)


def undocumented_keys(sources: Mapping[str, str], page: str) -> list[str]:
    """What commands print as JSON and the page does not name; and calls whose keys cannot be read."""
    wrong = []
    for path, source in sources.items():
        for function, keys in printed_keys(source).items():
            wrong += [f"{path}: {function} prints what cannot be read"] if not keys else []
            wrong += [f"{path}: {key}" for key in sorted(keys) if f"`{key}`" not in page]
    return wrong


# --------------------------------------------------------------------------------------------------------- metadata


def contradictions(project: Mapping[str, object], readme: str) -> list[str]:
    """Where the package's metadata and the README say different things."""
    classifiers = [str(one) for one in project["classifiers"]]  # type: ignore[union-attr]
    systems = [one.removeprefix("Operating System :: ") for one in classifiers if one.startswith("Operating System")]
    wrong = []
    if "Linux only" in readme and systems != ["POSIX :: Linux"]:
        wrong.append(f"the README says Linux only, the classifiers {systems}")
    if any("GPU" in one for one in classifiers) and "Nothing has been measured on a GPU" in readme:
        wrong.append("a classifier promises a GPU on which nothing was measured")
    python = re.search(r"Python (3\.\d+) or newer", readme)
    if python is None or project["requires-python"] != f">={python[1]}":
        wrong.append(f"requires-python is {project['requires-python']}, the README says {python and python[1]}")
    newer = [one for one in classifiers if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", one)]
    if python is not None and any(int(one.rpartition(".")[2]) < int(python[1][2:]) for one in newer):
        wrong.append("a classifier names a Python that is not supported")
    torch = re.search(r"PyTorch (\d+\.\d+) or newer", readme)
    if torch is None or f"torch>={torch[1]}" not in project["dependencies"]:  # type: ignore[operator]
        wrong.append(f"the README says PyTorch {torch and torch[1]}, the dependencies do not")
    status = re.search(r"Status: (\w+)", readme)
    if status is None or not any(one.endswith(f"- {status[1].capitalize()}") for one in classifiers):
        wrong.append(f"the README says {status and status[1]}, no classifier does")
    if str(project["license"]) not in readme.partition("## License")[2]:
        wrong.append(f"the README does not name {project['license']}")
    if any("License ::" in one for one in classifiers):
        wrong.append("a classifier names a license beside the license expression")
    return wrong


def places_of_version(version: str, texts: Mapping[str, str]) -> list[str]:
    """Files that write the version; every other one must read it."""
    return [path for path, text in texts.items() if re.search(rf"(?<![\d.=]){re.escape(version)}(?![\d.]*\d)", text)]


def unmeasured(page: str, measured: set[str]) -> list[str]:
    """Speeds with an interval that are in no committed result."""
    told = re.findall(r"\b(\d+\.\d+)(?:x| times)? \((\d+\.\d+) to (\d+\.\d+)\)", page)
    figures = [f"{value} ({low} to {high})" for value, low, high in told]
    return [figure for figure in figures if figure not in measured]


def intervals(told: object) -> Iterator[str]:
    """Every figure with an interval in a result, as a page writes it, to one digit and to two."""
    if isinstance(told, dict):
        yield from _written([told.get(name) for name in ("value", "low", "high")])
        for one in told.values():
            yield from intervals(one)
    elif isinstance(told, list):
        yield from _written(told)
        for one in told:
            yield from intervals(one)


def _written(ends: list[object]) -> Iterator[str]:
    if len(ends) == 3 and all(isinstance(end, float) for end in ends):
        for digits in (1, 2):
            yield "{:.{d}f} ({:.{d}f} to {:.{d}f})".format(*ends, d=digits)


# --------------------------------------------------------------------------------------------------------------- CI


CHECKS = (
    "pytest",
    "mkdocs build --strict",
    "ruff check",
    "ruff format --check",
    "pyright --pythonpath",
    "docs/generate.py --check",
    ".ci/release_check.py",
)


def missing_checks(script: str) -> list[str]:
    """Checks that the script does not run, or whose failure it ignores."""
    lines = [line for line in script.splitlines() if not re.match(r"\s*(#|echo)|.*\|\|", line)]
    runs = [part for line in lines for part in line.split(" && ")]
    missing = [
        check
        for check in CHECKS
        if not any(re.match(rf"\.venv/bin/(python )?{re.escape(check)}", part) for part in runs)
    ]
    return missing + ([] if "set -euo pipefail" in lines else ["set -euo pipefail"])
