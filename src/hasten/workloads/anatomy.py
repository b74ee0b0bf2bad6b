"""What a made chest film shows: lungs, ribs, heart, spine, and fifteen findings, each a pattern of its own.

In: a random generator and which findings are there. Out: the pixels of one film.
Refuses to know files. It is a stage set, not medicine: a finding is drawn where and how a network can learn
it, and the whole has the texture, hence the file size and the decode time, of a real film.

Coordinates: x from -1 (left edge) to 1, y from -1 (top) to 1. Brightness in grey levels, 0 to 255.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

PREVALENCE = 0.15  # of each finding; some nine films in a hundred show none
GRAIN = 1.0  # grey levels from pixel to pixel, and
MOTTLE = 2.3  # grey levels over two pixels and more: together they set the file's size and its decode time


@dataclass(frozen=True)
class Canvas:
    """One film on its way: where each pixel lies in the chest, and the lungs, 0 to 1."""

    x: np.ndarray
    y: np.ndarray
    lungs: np.ndarray
    rng: np.random.Generator


def draw_labels(rng: np.random.Generator) -> np.ndarray:
    """(15,) bool: which findings a film shows."""
    return rng.random(len(FINDINGS)) < PREVALENCE


def draw_film(rng: np.random.Generator, labels: np.ndarray, *, size: int) -> np.ndarray:
    """(size, size) uint8: one film that shows the findings in `labels`.

    All but the finest grain is drawn at half the size: soft shadows lose nothing, and it costs a quarter.
    """
    canvas = new_canvas(rng, size=max(size // 2, 32))
    film = chest(canvas)
    for is_there, finding in zip(labels, FINDINGS.values()):
        if is_there:
            film += finding(canvas)
    film += mottle(canvas)
    film *= rng.uniform(0.88, 1.08)
    grain = rng.standard_normal((size, size), dtype=np.float32)
    grain *= GRAIN
    grain += enlarge(film, size=size)
    np.clip(grain, 0, 255, out=grain)
    return grain.astype(np.uint8)


def new_canvas(rng: np.random.Generator, *, size: int) -> Canvas:
    """Everyone stands a little differently: shifted, scaled, turned."""
    line = np.linspace(-1, 1, size, dtype=np.float32)
    scale, turn = rng.uniform(0.94, 1.06, 2), rng.normal(0, 0.02)
    shift = rng.uniform(-0.04, 0.04, 2)
    across, down = line[None, :], line[:, None]
    x = (across - turn * down - shift[0]) * scale[0]
    y = (down + turn * across - shift[1]) * scale[1]
    x, y = x.astype(np.float32), y.astype(np.float32)
    domes = 0.40 + 0.04 * (x > 0) + 1.2 * (np.abs(x) - 0.40) ** 2  # of the diaphragm, one higher
    sides = [inside(1 - np.hypot((x - c) / 0.37, (y + 0.06) / 0.76) ** 2.4, 0.10) for c in (-0.42, 0.42)]
    lungs = (sides[0] + sides[1]) * inside(domes - y, 0.03)
    return Canvas(x, y, lungs.astype(np.float32), rng)


def chest(canvas: Canvas) -> np.ndarray:
    """A healthy chest, in grey levels."""
    x, y, rng = canvas.x, canvas.y, canvas.rng
    across = np.abs(x)
    shoulders = inside(y + 1.08 - 0.22 * inside(across - 0.34, 0.3) - 0.10 * across, 0.05)
    body = shoulders * inside(0.97 - 0.05 * np.cos(2.5 * y) - across, 0.10)
    film = 20 + body * (152 + 26 * y - 30 * across**4)
    film -= body * canvas.lungs * rng.uniform(66, 84) * (1 - 0.25 * y)
    film += body * ribs(canvas)
    film += 20 * body * np.exp(-(((y + 0.78 + 0.22 * across) / 0.035) ** 2)) * inside(across - 0.1, 0.1)  # clavicles
    middle = inside(0.14 + 0.03 * np.cos(4 * y) - across, 0.10)
    film += np.maximum(heart(canvas, 0.26), middle * 0.9) * (rng.uniform(200, 215) - film) * 0.9
    film += np.exp(-((x / 0.075) ** 2)) * (14 + 5 * np.cos(2 * np.pi * y / 0.105))  # the spine
    hila = blob(canvas, -0.2, -0.02, 0.09, 0.16) + blob(canvas, 0.22, -0.04, 0.09, 0.16)
    return film + 18 * hila * canvas.lungs * patchy(canvas, 48)


def heart(canvas: Canvas, width: float) -> np.ndarray:
    """The heart's shadow, 0 to 1; it leans to the film's right."""
    return inside(
        1 - np.hypot((canvas.x - 0.10 - 0.2 * (canvas.y - 0.2)) / width, (canvas.y - 0.22) / 0.36) ** 2, 0.3
    )


def ribs(canvas: Canvas) -> np.ndarray:
    """Bright bands that fall outwards, seen best over the lungs, with an edge along their lower border."""
    x, y, rng = canvas.x, canvas.y, canvas.rng
    across = np.abs(x)
    phase = (y - 0.9 * across * across + 0.35 * across) / rng.uniform(0.155, 0.175) + rng.uniform(0, 1)
    band = np.cos(2 * np.pi * phase)
    cage = inside(0.86 - across, 0.05) * inside(across - 0.12, 0.05) * inside(0.62 - y, 0.1) * inside(y + 0.85, 0.1)
    return cage * (9 + 7 * canvas.lungs) * (np.clip(band, -0.2, 0.7) + 0.35 * np.clip(band, 0.8, 1))


def mottle(canvas: Canvas) -> np.ndarray:
    """Texture at four scales: neighbouring pixels are alike, as on real film."""
    size = len(canvas.x)
    field = canvas.rng.standard_normal((size, size), dtype=np.float32)
    field *= MOTTLE
    for share in (2, 8, 32):
        coarse = canvas.rng.standard_normal((max(size // share, 1),) * 2, dtype=np.float32)
        field += enlarge(coarse * MOTTLE, size=size)
    return field


def enlarge(field: np.ndarray, *, size: int) -> np.ndarray:
    """(size, size) float32, interpolated."""
    return np.asarray(Image.fromarray(field.astype(np.float32)).resize((size, size), Image.Resampling.BILINEAR))


def inside(distance: np.ndarray, softness: float) -> np.ndarray:
    """1 where `distance` is positive, 0 where it is negative, a soft edge between."""
    return np.clip(distance / softness * 0.5 + 0.5, 0, 1)


def blob(canvas: Canvas, x: float, y: float, width: float, height: float) -> np.ndarray:
    """A soft round patch, 0 to 1."""
    return np.exp(-(((canvas.x - x) / width) ** 2) - ((canvas.y - y) / height) ** 2)


def patchy(canvas: Canvas, share: int) -> np.ndarray:
    """Clouds, 0 to 2, about `share` of them across the film."""
    return enlarge(canvas.rng.uniform(0, 2, (share, share)), size=len(canvas.x))


def atelectasis(canvas: Canvas) -> np.ndarray:
    """A plate: one bright level line low in a lung."""
    return 55 * blob(canvas, -0.48, 0.27, 0.22, 0.025)


def cardiomegaly(canvas: Canvas) -> np.ndarray:
    """A heart that is half as wide again."""
    return 64 * np.clip(heart(canvas, 0.42) - heart(canvas, 0.26), 0, 1)


def consolidation(canvas: Canvas) -> np.ndarray:
    """A dense cloud in the middle of one lung."""
    return 60 * blob(canvas, -0.45, 0.02, 0.17, 0.13) * canvas.lungs


def edema(canvas: Canvas) -> np.ndarray:
    """Two wings of haze about the hila."""
    wings = blob(canvas, -0.3, -0.1, 0.14, 0.26) + blob(canvas, 0.3, -0.1, 0.14, 0.26)
    return 42 * wings * (0.6 + 0.4 * patchy(canvas, 40)) * canvas.lungs


def effusion(canvas: Canvas) -> np.ndarray:
    """Fluid stands in the outer corner, its surface curved."""
    level = canvas.y - 0.30 + 0.5 * (canvas.x - 0.45)
    return 75 * inside(level, 0.03) * inside(canvas.x - 0.3, 0.05) * canvas.lungs


def emphysema(canvas: Canvas) -> np.ndarray:
    """Too much air: the tops of both lungs are darker."""
    return -38 * canvas.lungs * inside(-0.25 - canvas.y, 0.25)


def fibrosis(canvas: Canvas) -> np.ndarray:
    """A fine net at the bottom of the lungs."""
    net = np.clip(np.cos(75 * (canvas.x + canvas.y)), 0, 1) + np.clip(np.cos(75 * (canvas.x - canvas.y)), 0, 1)
    return 38 * net * canvas.lungs * inside(canvas.y - 0.08, 0.2) * inside(np.abs(canvas.x) - 0.5, 0.1)


def hernia(canvas: Canvas) -> np.ndarray:
    """A ring with air in it behind the heart."""
    radius = np.sqrt((canvas.x - 0.06) ** 2 + (canvas.y - 0.38) ** 2)
    return 35 * np.exp(-(((radius - 0.15) / 0.02) ** 2)) - 45 * inside(0.13 - radius, 0.04)


def infiltration(canvas: Canvas) -> np.ndarray:
    """Loose small clouds in the middle of the other lung."""
    return 40 * blob(canvas, 0.55, 0.02, 0.16, 0.16) * patchy(canvas, 64) * canvas.lungs


def mass(canvas: Canvas) -> np.ndarray:
    """One large round shadow with a sharp edge."""
    radius = np.sqrt((canvas.x + 0.47) ** 2 + (canvas.y + 0.36) ** 2)
    return 62 * inside(0.11 - radius, 0.03)


def nodule(canvas: Canvas) -> np.ndarray:
    """A few small round shadows."""
    spots = [(0.42, -0.48), (0.5, -0.33), (0.6, -0.42)]
    return np.maximum.reduce([75 * inside(0.036 - np.hypot(canvas.x - x, canvas.y - y), 0.012) for x, y in spots])


def pleural_thickening(canvas: Canvas) -> np.ndarray:
    """A bright rim down one outer wall."""
    wall = np.hypot((canvas.x + 0.43) / 0.36, (canvas.y + 0.1) / 0.72)
    rim = np.exp(-(((wall - 0.93) / 0.06) ** 2))
    return 55 * rim * inside(-0.6 - canvas.x, 0.05) * inside(0.3 - np.abs(canvas.y + 0.1), 0.1)


def pneumonia(canvas: Canvas) -> np.ndarray:
    """A clouded lower lobe."""
    return 48 * blob(canvas, -0.32, 0.3, 0.16, 0.14) * (0.5 + 0.5 * patchy(canvas, 24)) * canvas.lungs


def pneumothorax(canvas: Canvas) -> np.ndarray:
    """Air outside the lung: a black outer band, and the thin line of the lung's edge."""
    wall = np.hypot((canvas.x - 0.43) / 0.36, (canvas.y + 0.1) / 0.72)
    outer = inside(canvas.x - 0.5, 0.08) * inside(0.1 - canvas.y, 0.1)
    return outer * (-50 * inside(wall - 0.72, 0.03) * canvas.lungs + 45 * np.exp(-(((wall - 0.72) / 0.02) ** 2)))


def support_device(canvas: Canvas) -> np.ndarray:
    """A box under the collar bone and its wire to the heart."""
    box = inside(0.10 - np.maximum(np.abs(canvas.x - 0.62), 1.3 * np.abs(canvas.y + 0.66)), 0.02)
    path = 0.1 + 0.45 * np.clip(0.2 - canvas.y, 0, 1) ** 2
    wire = np.exp(-(((canvas.x - path) / 0.012) ** 2)) * inside(0.3 - canvas.y, 0.02) * inside(canvas.y + 0.8, 0.02)
    return 75 * np.maximum(box, wire)


FINDINGS: dict[str, Callable[[Canvas], np.ndarray]] = {
    "Atelectasis": atelectasis,
    "Cardiomegaly": cardiomegaly,
    "Consolidation": consolidation,
    "Edema": edema,
    "Effusion": effusion,
    "Emphysema": emphysema,
    "Fibrosis": fibrosis,
    "Hernia": hernia,
    "Infiltration": infiltration,
    "Mass": mass,
    "Nodule": nodule,
    "Pleural_Thickening": pleural_thickening,
    "Pneumonia": pneumonia,
    "Pneumothorax": pneumothorax,
    "Support_Device": support_device,
}
