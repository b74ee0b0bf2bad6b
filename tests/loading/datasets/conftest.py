"""Photographs in two folders."""

import pytest
from recipes import save_image


@pytest.fixture
def folder(tmp_path):
    for number in range(6):
        place = tmp_path / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        save_image(place / f"{number}.jpg", number, "L" if number == 2 else "RGB")
    return tmp_path


@pytest.fixture
def files(folder):
    return sorted(map(str, folder.glob("*/*.jpg")))
