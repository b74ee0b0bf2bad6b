"""Write docs/json.md from the source of the records.

    python docs/make_json_reference.py           write the page
    python docs/make_json_reference.py --check   check whether it is up to date; exit with 1 if not

The text of the page comes from the records' docstrings and the comment behind each field.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from generate import main

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "src" / "hasten" / "records"
PAGE = ROOT / "docs" / "json.md"
FILES = (
    ("The run", "run.py"),
    ("The machine", "machine.py"),
    ("The diagnosis", "diagnosis.py"),
    ("The tuning run", "tuning.py"),
)

HEAD = """\
# The JSON record

<!-- Written by docs/make_json_reference.py from src/hasten/records; edit the docstrings and comments there. -->

All commands except `run`, `mcp` and `completion` accept `--json`: it prints one object, and nothing else, to standard output. The output of the measured script goes elsewhere.

| command | keys of the object |
|---|---|
| `hasten diagnose` | `run`: a [Run](#run) · `diagnosis`: a [Diagnosis](#diagnosis) |
| `hasten report` | the same; for a tuning run also `tuning`: a [Tuning](#tuning), and `followed`: a list of [PlannedRunRecord](#plannedrunrecord) |
| `hasten speedtest` | the same, and `workload`, `num_images`, `num_labels`; for `all` a list of such objects |
| `hasten merge` | `run`: a [Run](#run) · `diagnosis`: a [Diagnosis](#diagnosis) |
| `hasten compare` | `comparison`: a [Comparison](#comparison) |
| `hasten tune` | `tuning`: a [Tuning](#tuning) · `plan`: path of the plan |
| `hasten check` | `machine`: a [Machine](#machine) · `disk`: a [DiskSpeed](#diskspeed), null for a URL · `reads`: a [ReadRates](#readrates) of a URL or a network mount, otherwise null · `lines`: a list of [CheckLine](#checkline) |
| `hasten prove` | `proof`: a [VersionProof](#versionproof) |
| `hasten report --list` | `saved`: a list of `id`, `when` (seconds since 1970), `command`, `result` |
| `hasten explain` | `explanation`: Markdown |
| `hasten clean` | `deleted`: folders · `bytes` · `dry_run` |

`.hasten/tunings/<id>/tuning.json` contains a Tuning, saved after every trial; `.hasten/followed.jsonl` contains a PlannedRunRecord per line, one for each `hasten run`. `.hasten/runs/<id>/run.json` contains only the Run. The diagnosis is computed from it each time it is shown, so old runs benefit from newer rules.

In all records:

- Seconds, bytes and shares are plain numbers: seconds are not milliseconds, a share of 0.5 is 50%.
- `null` is *not measured* or *not seen*; `0.0` is a measured zero.
- **A field that has its default is left out.** The column *default* gives its value; *required* marks fields that are always there.
- Ignore unknown fields: newer versions of hasten add fields without a new `version`. If the meaning of a field changes, or a field is removed, `version` increases; hasten does not read records of a newer version.

"""


def files() -> dict[Path, str]:
    """The page by its path."""
    return {PAGE: page()}


def page() -> str:
    """The whole page as text."""
    parts = [HEAD, "## Phases\n\n", _phases()]
    for title, name in FILES:
        source = (RECORDS / name).read_text(encoding="utf-8")
        comments = _comments(source)
        parts.append(f"## {title}\n\n")
        for record in _records(source):
            parts.append(_section(record, comments))
    return "".join(parts).rstrip() + "\n"


def _comments(source: str) -> dict[int, str]:
    """The comment of each line that has one."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def _records(source: str) -> list[ast.ClassDef]:
    """The record classes of a file, those that others are made of last."""
    found = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return found[::-1]


def _fields(record: ast.ClassDef, comments: dict[int, str]) -> Iterator[tuple[str, str, str, str]]:
    for node in record.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = "required" if node.value is None else f"`{_json(ast.unparse(node.value))}`"
            comment = comments.get(node.end_lineno or node.lineno, "")
            yield node.target.id, _kind(ast.unparse(node.annotation)), default, comment


def _json(default: str) -> str:
    """A default in JSON syntax; a name is replaced by its value."""
    known = {"None": "null", "True": "true", "False": "false", "()": "[]", "RECORD_VERSION": _version()}
    return known.get(default, default)


def _version() -> str:
    source = (RECORDS / "codec.py").read_text(encoding="utf-8")
    lines = (line for line in source.splitlines() if line.startswith("RECORD_VERSION = "))
    return next(lines).removeprefix("RECORD_VERSION = ")


@functools.cache
def _choices() -> dict[str, str]:
    """The values of each named Literal; phases have a separate section."""
    found: dict[str, str] = {"Phase": "[phase](#phases)"}
    for path in (*sorted(RECORDS.glob("*.py")), RECORDS.parent / "protocol.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal["):
                found.setdefault(ast.unparse(node.targets[0]), _literal(ast.unparse(node.value)))
    return found


def _literal(annotation: str) -> str:
    return " or ".join(f'"{value}"' for value in ast.literal_eval(annotation.removeprefix("Literal") or "()"))


def _kind(annotation: str) -> str:
    """An annotation in JSON types."""
    for name, instead in (("str", "string"), ("bool", "boolean")):  # not within a literal's words
        annotation = re.sub(rf"(?<![\w\"]){name}\b", instead, annotation)
    annotation = re.sub(r"Literal\[[^\]]*\]", lambda found: _literal(found[0]), annotation)
    annotation = re.sub(r"\w+", lambda found: _choices().get(found[0], found[0]), annotation)
    words = annotation.replace(" | None", " or null").replace(", ...", "")
    return words.replace("tuple[", "list[").replace("|", "or")


def _section(record: ast.ClassDef, comments: dict[int, str]) -> str:
    rows = [
        f"| `{name}` | {kind} | {default} | {description} |"
        for name, kind, default, description in _fields(record, comments)
    ]
    table = "\n".join(["| field | type | default | description |", "|---|---|---|---|", *rows])
    return f"### {record.name}\n\n{ast.get_docstring(record) or ''}\n\n{table}\n\n"


def _phases() -> str:
    """The phases of a step, from the comments of their Literal."""
    source = (RECORDS.parent / "protocol.py").read_text(encoding="utf-8")
    comments = _comments(source)
    tree = ast.parse(source)
    literal = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "Phase"
    )
    assert isinstance(literal, ast.Subscript) and isinstance(literal.slice, ast.Tuple)
    phases = literal.slice
    rows = [f"| `{ast.literal_eval(item)}` | {comments.get(item.lineno, '')} |" for item in phases.elts]
    head = "The keys of `phases`, in their usual order in a step. A phase is exclusive: time in a nested "
    head += "phase counts for the inner one only, so the phases and `unaccounted` sum to the step.\n\n"
    return head + "\n".join(["| phase | description |", "|---|---|", *rows]) + "\n\n"


if __name__ == "__main__":
    raise SystemExit(main(files))
