"""Draw a recorded terminal session as an animated SVG; record one.

    python docs/make_cast.py [--check]                            docs/pictures/tune-cast.svg from docs/casts/tune.cast
    python docs/make_cast.py --record NAME [--prompt TEXT] -- COMMAND ...    run a command and record what it prints

A recording is an asciicast v2 file (https://docs.asciinema.org/manual/asciicast/v2/): what the command printed, and when.
Nothing in the picture is drawn by hand. Pauses are shortened to PAUSE seconds; the clock in the progress line is the real one.
"""

from __future__ import annotations

import html
import json
import os
import pty
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import generate
import pyte

ROOT = Path(__file__).resolve().parent.parent
CASTS, PICTURES = ROOT / "docs" / "casts", ROOT / "docs" / "pictures"
COLUMNS, ROWS = 80, 24
PAUSE = 0.08  # seconds that are shown of a longer pause
LAST = 6.0  # seconds that the last screen stays
FRAME = 0.1  # seconds between two frames, at least
WIDTH, HEIGHT = 8.4, 17.0  # of a character cell
COLORS = {
    "default": "#d6deeb",
    "black": "#5c6773",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "white": "#d6deeb",
}
Screen = tuple[str, ...]  # the markup of each row


def record(name: str, command: list[str], *, prompt: str) -> None:
    """Run a command on a terminal of its own, and keep what it prints."""
    CASTS.mkdir(exist_ok=True)
    events = [[0.0, "o", f"$ {prompt}\r\n"]]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(COLUMNS=str(COLUMNS), LINES=str(ROWS), TERM="xterm-256color")
        os.execvp(command[0], command)
    began = time.monotonic()
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the terminal is closed
            break
        if not data:
            break
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        events.append([round(time.monotonic() - began, 3), "o", data.decode("utf-8", "replace")])
    os.waitpid(pid, 0)
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "command": prompt}
    lines = [json.dumps(line, ensure_ascii=False) for line in (header, *events)]
    (CASTS / f"{name}.cast").write_text("\n".join(lines) + "\n", encoding="utf-8")


def frames(cast: str) -> Iterator[tuple[float, Screen]]:
    """The moments at which the screen changes, in seconds with pauses shortened, and the screen then."""
    header, *lines = cast.splitlines()
    size = json.loads(header)
    screen = pyte.Screen(size["width"], size["height"])
    stream = pyte.Stream(screen)
    shown, at, before, last = (), 0.0, 0.0, -1.0
    for line in lines:
        when, kind, text = json.loads(line)
        at += min(PAUSE, when - before)
        before = when
        if kind != "o":
            continue
        stream.feed(text)
        now = tuple(_row(screen, number) for number in range(size["height"]))
        if now != shown and at >= last + FRAME:
            shown, last = now, at
            yield at, now
    now = tuple(_row(screen, number) for number in range(size["height"]))
    if now != shown:
        yield at, now


def _row(screen: pyte.Screen, number: int) -> str:
    """One row as SVG spans: neighbors of one style share a span."""
    spans: list[tuple[tuple[str, bool, bool], int, str]] = []
    for column in range(screen.columns):
        cell = screen.buffer[number][column]
        style = (cell.fg, cell.bold, False)
        if spans and spans[-1][0] == style:
            spans[-1] = (style, spans[-1][1], spans[-1][2] + cell.data)
        else:
            spans.append((style, column, cell.data))
    found = []
    for (color, bold, _), column, text in spans:
        if text.strip():
            lead = len(text) - len(text.lstrip())
            fill = COLORS.get(color, f"#{color}" if len(color) == 6 else COLORS["default"])
            weight = ' font-weight="bold"' if bold else ""
            content = html.escape(text.strip(" "))
            length = round(len(text.strip(" ")) * WIDTH, 1)
            found.append(
                f'<tspan x="{round((column + lead) * WIDTH + 16, 1)}" fill="{fill}"{weight} '
                f'textLength="{length}" lengthAdjust="spacingAndGlyphs">{content}</tspan>'
            )
    return "".join(found)


def svg(cast: str) -> str:
    """The animated picture of a recording."""
    found = list(frames(cast))
    total = found[-1][0] + LAST
    width, height = COLUMNS * WIDTH + 32, ROWS * HEIGHT + 56
    # Rows that stay from one frame to the next are drawn once: (row, markup) -> the times at which it is there.
    spells: dict[tuple[int, str], list[list[float]]] = {}
    ends = [*(at for at, _ in found[1:]), total]
    for (at, screen), end in zip(found, ends):
        for number, markup in enumerate(screen):
            if not markup:
                continue
            known = spells.setdefault((number, markup), [])
            if known and known[-1][1] == at:
                known[-1][1] = end
            else:
                known.append([at, end])
    rules, rows = [], []
    for index, ((number, markup), times) in enumerate(spells.items()):
        stops = ["0%{visibility:hidden}"]
        for start, end in times:
            stops.append(f"{100 * start / total:.2f}%{{visibility:visible}}")
            stops.append(f"{100 * end / total:.2f}%{{visibility:{'visible' if end >= total else 'hidden'}}}")
        rules.append(f"@keyframes r{index}{{{''.join(stops)}}}")
        y = round(number * HEIGHT + 56, 1)
        rows.append(f'<text y="{y}" style="animation-name:r{index}">{markup}</text>')
    style = (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;"
        f"animation:{total:.1f}s step-end infinite}}"
        # Who wants no motion gets the last screen.
        "@media (prefers-reduced-motion:reduce){text{animation-play-state:paused;"
        f"animation-delay:-{total - 0.1:.1f}s}}}}"
    )
    title = html.escape(json.loads(cast.splitlines()[0])["command"])
    dots = "".join(
        f'<circle cx="{18 + 18 * n}" cy="18" r="5.5" fill="{fill}"/>'
        for n, fill in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="Terminal: {title}"><style>{style}{"".join(rules)}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>{dots}{"".join(rows)}</svg>\n'
    )


def files() -> dict[Path, str]:
    """The picture of each recording."""
    return {
        PICTURES / f"{path.stem}-cast.svg": svg(path.read_text(encoding="utf-8"))
        for path in sorted(CASTS.glob("*.cast"))
    }


if __name__ == "__main__":
    if "--record" in sys.argv:
        options, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
        shown = options[options.index("--prompt") + 1] if "--prompt" in options else " ".join(command)
        record(options[options.index("--record") + 1], command, prompt=shown)
    else:
        raise SystemExit(generate.main(files))
