"""The commands around the others: clean, completion for shells, and mcp for coding agents."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import add_subcommand, print_json, whole
from hasten.cli.saved import RUN, TUNING, saved_paths
from hasten.errors import CommandError
from hasten.folders import cache_folder
from hasten.launch.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Subparsers

UNFINISHED = 86400.0  # seconds after which a folder without a record is not one of a run in progress
SHELLS = ("bash", "zsh", "tcsh")

# --------------------------------------------------------------------------------------------------------------- clean


def add_clean(subparsers: Subparsers) -> None:
    """Add `hasten clean`."""
    description = "Delete old results in .hasten, and on request the cache folder. Never deletes hasten.toml."
    examples = {
        "hasten clean": "keeps the last 5 results",
        "hasten clean --keep 0 --cache": "everything that hasten has stored",
    }
    parser = add_subcommand(subparsers, "clean", description, _clean, examples=examples)
    parser.add_argument(
        "--keep", type=whole, default=5, metavar="N", help="number of results to keep, the newest [default: 5]"
    )
    parser.add_argument(
        "--cache", action="store_true", help="also delete the cache folder: generated images, samples of disk caches"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def _clean(args: argparse.Namespace) -> int:
    doomed = _old_results(RESULTS, keep=args.keep)
    if args.cache and cache_folder().is_dir():
        doomed.append(cache_folder())
    sizes = [_size(folder) for folder in doomed]
    if not args.dry_run:
        for folder in doomed:
            shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        print_json({"deleted": [str(folder) for folder in doomed], "bytes": sum(sizes), "dry_run": args.dry_run})
        return 0
    from hasten import format

    for folder, size in zip(doomed, sizes):
        print(f"{'would delete' if args.dry_run else 'deleted'} {folder} ({format.size(size)})")
    if not doomed:
        print(f"nothing to delete: {format.count(len(saved_paths(RESULTS)), noun='result')} in {RESULTS}")
    return 0


def _old_results(root: Path, *, keep: int) -> list[Path]:
    """The folders of all results but the newest `keep`, and without the runs that a kept tuning run is made of."""
    from hasten.errors import RecordError
    from hasten.records import Tuning, from_json

    paths = saved_paths(root)
    inner: dict[Path, set[str]] = {}  # the runs of each tuning run
    for path in paths:
        inner[path] = set()
        if path.name == TUNING:
            with contextlib.suppress(RecordError, OSError):
                inner[path] = {*from_json(Tuning, path.read_bytes(), source=str(path)).runs}
    of_tunings = {id for ids in inner.values() for id in ids}
    results = [path for path in paths if path.name == TUNING or path.parent.name not in of_tunings]
    kept = {path.parent for path in results[:keep]} | {
        root / "runs" / id for path in results[:keep] for id in inner[path]
    }
    folders = [*(root / "runs").glob("*"), *(root / "tunings").glob("*")]
    return sorted(folder for folder in folders if folder not in kept and not _is_being_made(folder))


def _is_being_made(folder: Path) -> bool:
    """Whether a folder may be of a run in progress."""
    finished = (folder / RUN).is_file() or (folder / TUNING).is_file()
    return not finished and time.time() - folder.stat().st_mtime < UNFINISHED


def _size(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.lstat().st_size
    return found


# ---------------------------------------------------------------------------------------------------------- completion


def add_completion(subparsers: Subparsers) -> None:
    """Add `hasten completion`."""
    examples = {
        'eval "$(hasten completion bash)"': "in ~/.bashrc",
        "hasten completion zsh > ~/.zfunc/_hasten": "a folder of $fpath",
    }
    parser = add_subcommand(
        subparsers,
        "completion",
        "Print a script that completes commands and options in your shell.",
        _completion,
        examples=examples,
        prints_json=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def _completion(args: argparse.Namespace) -> int:
    import shtab

    for command in args.commands.values():
        for action in command._actions:  # pyright: ignore[reportPrivateUsage]
            if action.metavar in ("SCRIPT", "RUN", "FILE", "OLD", "NEW"):
                action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
    print(shtab.complete(args.parser, shell=args.shell))
    return 0


# ----------------------------------------------------------------------------------------------------------------- mcp


def add_mcp(subparsers: Subparsers) -> None:
    """Add `hasten mcp`."""
    description = "Serve diagnose, tune, prove, report and explain to coding agents, over standard input and output."
    examples = {"hasten mcp": "started by an MCP client, as docs/how-to/coding-agents.md shows"}
    add_subcommand(subparsers, "mcp", description, _mcp, examples=examples, prints_json=False)


def _mcp(_args: argparse.Namespace) -> int:
    try:
        found = importlib.util.find_spec("mcp.server.mcpserver")
    except ImportError:
        found = None
    if found is None:
        raise CommandError("hasten mcp needs the MCP SDK; `pip install 'hasten[mcp]'` installs it")
    from hasten.integrations.mcp_server import make_server

    make_server().run("stdio")
    return 0
