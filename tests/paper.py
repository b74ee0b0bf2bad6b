"""Consoles that keep what is printed, and the texts that were agreed on."""

import io
import os
from pathlib import Path

from rich.console import Console

GOLDEN = Path(__file__).parent / "reports" / "golden"
WIDTHS = [60, 80, 200]


class Paper:
    """A console that keeps what is printed, in its own encoding, untouched by this machine's environment."""

    def __init__(self, *, width: int = 80, encoding: str = "utf-8", **options):
        self.file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
        self.console = Console(file=self.file, width=width, _environ={}, legacy_windows=False, **options)

    @property
    def text(self) -> str:
        self.file.flush()
        return self.file.buffer.getvalue().decode(self.file.encoding)


def assert_golden(text: str, name: str) -> None:
    """Compare with the kept text. HASTEN_GOLDEN=write keeps the new one: read it, then commit it."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("HASTEN_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8")
