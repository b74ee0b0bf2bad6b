import pytest

from hasten.data.memo import budget
from hasten.data.memo.budget import BudgetError, Forecast, disk_budget, parse_budget, ram_budget
from hasten.errors import HastenError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (12345, 12345),
        (0, 0),
        ("0", 0),
        ("700", 700),
        ("8 GiB", 8 << 30),
        ("8GiB", 8 << 30),
        (" 1.5 gib ", 3 << 29),
        ("500 MB", 500_000_000),
        ("2 TB", 2 * 10**12),
        ("3 kB", 3000),
        ("50%", 500),
        ("12.5 %", 125),
        ("100%", 1000),
    ],
)
def test_common_notations_of_a_budget_are_parsed(text, num_bytes):
    assert parse_budget(text, whole=1000) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "lots", "-1", -1, "8 GiBs", "120%", "%", "1e9", "nan", 1.5, None, True, "9" * 400]
)
def test_an_invalid_budget_raises_with_a_suggestion(text):
    with pytest.raises(
        BudgetError, match=r'is not a valid cache size: use bytes, or text like "8 GiB", "500 MB" or "50%"$'
    ) as raised:
        parse_budget(text, whole=1000)
    assert isinstance(raised.value, HastenError) and isinstance(raised.value, ValueError)


def test_memory_is_shared_with_the_rest_of_the_run_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setattr(budget, "available_memory", lambda: 1000)
    assert ram_budget() == 500
    assert ram_budget("80%") == 800
    assert ram_budget(2000) == 2000


def test_the_tighter_limit_of_machine_and_control_group_applies(monkeypatch):
    from hasten.cgroup import CgroupMemory

    whole = budget.available_memory()
    monkeypatch.setattr(budget, "read_memory", lambda _: CgroupMemory(limit=1 << 30, available=77, page_cache=0))
    assert budget.available_memory() == 77 < whole
    assert budget.spare_memory() == 256 << 20
    monkeypatch.setattr(budget, "read_memory", lambda _: None)
    assert budget.available_memory() > 77


def test_a_disk_budget_refers_to_the_free_space_even_before_the_folder_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(budget.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 900})())
    folder = tmp_path / "not" / "yet"
    assert disk_budget(folder) == 450
    assert disk_budget(folder, taken=100) == 500
    assert disk_budget(folder, "100%", taken=100) == 1000


def test_ranks_get_the_same_budget_regardless_of_available_memory(monkeypatch):
    monkeypatch.setattr(budget, "all_memory", lambda: 1000)
    found = set()
    for available in (100, 900):
        monkeypatch.setattr(budget, "available_memory", lambda available=available: available)
        found.add((ram_budget(for_ranks=True), ram_budget("50%", for_ranks=True)))
    assert found == {(400, 400)}


def test_a_forecast_shows_the_full_cache_and_its_tiers():
    found = Forecast(100_000, 61e9, 5.4, (("ram", int(14e9)), ("disk", int(100e9))), 0.002)
    (ram, ram_bytes, ram_share), (disk, disk_bytes, disk_share) = found.shares()
    assert (ram, disk) == ("ram", "disk") and ram_bytes == 14e9 and disk_bytes == pytest.approx(47e9)
    assert ram_share == pytest.approx(0.23, abs=0.005) and disk_share == pytest.approx(1 - ram_share)
    assert found.share == pytest.approx(1.0)
    assert found.line() == "full cache 61 GB = 5.4x the files; 14 GB fits in RAM: 23%; 47 GB fits in disk: 77%"


def test_a_forecast_shows_what_is_recomputed():
    found = Forecast(1000, 1e9, None, (("ram", int(4e8)),), 0.1)
    assert found.line() == "full cache 1.0 GB; 400 MB fits in RAM: 40%; 60% is recomputed each epoch"


def test_an_empty_dataset_has_a_forecast():
    found = Forecast(0, 0.0, None, (("ram", 10),), 0.0)
    assert found.share == 1.0 and "RAM: 100%" in found.line()
