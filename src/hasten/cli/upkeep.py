"""The commands around the others: clean, completion for shells, and mcp for coding agents."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import add_subcommand, print_json, whole
from hasten.cli.saved import RUN, TUNING, results, runs_of
from hasten.errors import CommandError, DirectoryError, RecordError
from hasten.folders import cache_folder
from hasten.launch.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Subparsers

OURS = re.compile(r"\d{8}-\d{6}-\w+(-tune)?")  # the folder of a result
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
        "--cache",
        action="store_true",
        help="also delete what is in the cache folder: generated images, samples of disk caches",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def _clean(args: argparse.Namespace) -> int:
    from hasten import format

    doomed = [*_old_results(RESULTS, keep=args.keep), *(_cached() if args.cache else ())]
    deleted: list[Path] = []
    size = 0
    for folder in doomed:
        before = _size(folder)
        if not args.dry_run:
            shutil.rmtree(folder, ignore_errors=True)
        if args.dry_run or not folder.exists():
            deleted.append(folder)
            size += before
            if not args.json:
                print(f"{'would delete' if args.dry_run else 'deleted'} {folder} ({format.size(before)})")
    if args.json:
        print_json({"deleted": [str(folder) for folder in deleted], "bytes": size, "dry_run": args.dry_run})
    elif not doomed:
        print(f"nothing to delete: {format.count(len(results(RESULTS)), noun='result')} in {RESULTS}")
    left = [str(folder) for folder in doomed if folder not in deleted]
    if left:
        raise DirectoryError(f"cannot delete {', '.join(left)}; check the permissions")
    return 0


def _old_results(root: Path, *, keep: int) -> list[Path]:
    """The folders of results that are not kept: neither among the newest `keep`, nor a part of one, nor in progress."""
    kept = results(root)[:keep]
    kept += [path for path in results(root)[keep:] if path.name == TUNING and _is_recent(path) and _is_running(path)]
    folders = {path.parent for path in kept}
    folders |= {root / "runs" / id for path in kept if path.name == TUNING for id in runs_of(path)}
    return sorted(
        folder
        for folder in [*(root / "runs").glob("*"), *(root / "tunings").glob("*")]
        if OURS.fullmatch(folder.name) and folder.is_dir() and folder not in folders and not _is_being_made(folder)
    )


def _is_being_made(folder: Path) -> bool:
    """Whether a folder without a record may be of a run in progress."""
    finished = (folder / RUN).is_file() or (folder / TUNING).is_file()
    return not finished and _is_recent(folder)


def _is_running(tuning: Path) -> bool:
    from hasten.records import Tuning, from_json

    try:
        return from_json(Tuning, tuning.read_bytes(), source=str(tuning)).state == "running"
    except (RecordError, OSError):
        return True


def _is_recent(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < UNFINISHED


def _cached() -> list[Path]:
    """What hasten keeps in its cache folder, which may be one that others use too."""
    try:
        folder = cache_folder()
    except RuntimeError as error:
        raise DirectoryError(f"there is no cache folder ({error}); set HASTEN_CACHE") from None
    found = [folder / "memo", *folder.glob("*-v[0-9]*-[0-9]*"), *folder.glob(".*-v[0-9]*-[0-9]*")]
    return sorted(path for path in found if path.is_dir() and not path.is_symlink())


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
        raise CommandError("hasten mcp needs the MCP SDK; `pip install 'mcp>=2'` installs it")
    from hasten.integrations.mcp_server import make_server

    make_server().run("stdio")
    return 0
