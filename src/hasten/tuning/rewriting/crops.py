"""A crop comes before what would otherwise be done to pixels that are then thrown away.

In: a file's text and its tree. Out: the text changed, or None. Refuses transforms that look at the whole image, or change its size.
"""

from __future__ import annotations

import ast
from itertools import pairwise

from hasten.tuning.rewriting.text import called, stretch

CROPS = "RandomCrop CenterCrop"
LOCAL = """
    GaussianBlur GaussianNoise ColorJitter Grayscale RandomGrayscale RandomAdjustSharpness RandomInvert RandomPosterize
    RandomSolarize Normalize ToDtype ConvertImageDtype RandomHorizontalFlip RandomVerticalFlip
"""  # transforms whose every pixel depends on no more than a few others near it, or lies elsewhere in a crop's like


def cropped_first(text: str, tree: ast.Module, _line: int) -> str | None:
    """The text with each Compose cropping before what would otherwise be done to pixels that are then thrown away."""
    changed = None
    while steps := _late_crop(tree, text):
        changed = text = _rotated(text, steps)
        tree = ast.parse(text)
    return changed


def _late_crop(tree: ast.Module, text: str) -> list[ast.expr]:
    """What may as well come behind a crop, and the crop; a comment among them would lose its place."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.List(elts=steps)]) if called(node) == "Compose":
                crop = first = next((n for n, step in enumerate(steps) if _is_crop(step)), 0)
                while first > 0 and _is_local(steps[first - 1]):
                    first -= 1
                found = steps[first : crop + 1]
                if first < crop and not any("#" in gap for gap in _gaps(text, found)):
                    return found
            case _:
                pass
    return []


def _is_local(step: ast.expr) -> bool:
    if not isinstance(step, ast.Call) or called(step) not in LOCAL.split():
        return False
    # Contrast is against the mean of the whole image.
    contrast = len(step.args) > 1 or any(word.arg in ("contrast", None) for word in step.keywords)
    return called(step) != "ColorJitter" or not contrast


def _is_crop(step: ast.expr) -> bool:
    """Of nothing but a size: padding looks at what was done before."""
    if not isinstance(step, ast.Call) or called(step) not in CROPS.split():
        return False
    return len(step.args) + len(step.keywords) == 1 and all(word.arg == "size" for word in step.keywords)


def _gaps(text: str, steps: list[ast.expr]) -> list[str]:
    return [text[stretch(text, a)[1] : stretch(text, b)[0]] for a, b in pairwise(steps)]


def _rotated(text: str, steps: list[ast.expr]) -> str:
    """The text with the last of these expressions before the others."""
    places = [stretch(text, step) for step in steps]
    parts = [text[begin:end] for begin, end in (places[-1], *places[:-1])]
    inner = "".join(part + gap for part, gap in zip(parts, [*_gaps(text, steps), ""]))
    return text[: places[0][0]] + inner + text[places[-1][1] :]
