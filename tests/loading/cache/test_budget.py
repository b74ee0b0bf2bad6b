import pytest

from hasten.errors import HastenError
from hasten.loading.cache import budget
from hasten.loading.cache.budget import BudgetError, Measured, disk_budget, forecast, parse_budget, ram_budget


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
def test_a_budget_is_read_as_people_write_it(text, num_bytes):
    assert parse_budget(text, whole=1000) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "lots", "-1", -1, "8 GiBs", "120%", "%", "1e9", "nan", 1.5, None, True, "9" * 400]
)
def test_a_bad_budget_says_what_to_write_instead(text):
    with pytest.raises(BudgetError, match=r'give bytes, or text like "8 GiB", "500 MB" or "50%"$') as raised:
        parse_budget(text, whole=1000)
    assert isinstance(raised.value, HastenError) and isinstance(raised.value, ValueError)


def test_memory_is_shared_with_the_rest_of_the_run_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setattr(budget, "available_memory", lambda: 1000)
    assert ram_budget() == 500
    assert ram_budget("80%") == 800
    assert ram_budget(2000) == 2000


def test_the_tighter_of_machine_and_control_group_counts(monkeypatch):
    from hasten.cgroup import CgroupMemory

    whole = budget.available_memory()
    monkeypatch.setattr(budget, "read_memory", lambda _: CgroupMemory(limit=1 << 30, available=77, page_cache=0))
    assert budget.available_memory() == 77 < whole
    assert budget.spare_memory() == 256 << 20
    monkeypatch.setattr(budget, "read_memory", lambda _: None)
    assert budget.available_memory() > 77


def test_a_disks_budget_is_of_what_is_free_even_before_the_folder_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(budget.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 900})())
    folder = tmp_path / "not" / "yet"
    assert disk_budget(folder) == 450
    assert disk_budget(folder, taken=100) == 500
    assert disk_budget(folder, "100%", taken=100) == 1000


def test_a_forecast_says_what_a_full_cache_takes_and_where_it_goes():
    measured = [Measured(num_bytes=610e3, seconds=0.002, file_bytes=113e3)] * 8
    found = forecast(measured, num_samples=100_000, budgets=[("ram", int(14e9)), ("disk", int(100e9))])
    assert found.full_bytes == pytest.approx(61e9)
    assert found.expansion == pytest.approx(5.4, abs=0.01)
    ram, disk = found.tiers
    assert ram.share == pytest.approx(0.23, abs=0.005) and ram.num_bytes == 14e9
    assert disk.share == pytest.approx(1 - ram.share) and disk.num_bytes == pytest.approx(47e9)
    assert found.share == pytest.approx(1.0)
    assert found.seconds_per_sample == pytest.approx(0.002)
    assert found.line() == "full cache 61 GB = 5.4x the files; 14 GB fits in RAM: 23%; 47 GB fits in disk: 77%"


def test_a_forecast_says_what_will_be_prepared_anew():
    found = forecast([Measured(1e6, 0.1)], num_samples=1000, budgets=[("ram", int(4e8))])
    assert found.expansion is None
    assert found.line() == "full cache 1.0 GB; 400 MB fits in RAM: 40%; 60% is prepared anew each epoch"


def test_all_are_welcome_where_everything_fits_or_all_are_alike():
    mixed = [Measured(1000, seconds) for seconds in (1, 10, 100, 1000)]
    alike = [Measured(1000, seconds) for seconds in (1.0, 1.1, 1.2, 1.3)]
    assert forecast(mixed, num_samples=4, budgets=[("ram", 4000)]).tiers[0].threshold == 0.0
    assert forecast(alike, num_samples=4, budgets=[("ram", 2000)]).tiers[0].threshold == 0.0


def test_where_not_all_fit_the_worthiest_per_byte_are_kept():
    measured = [Measured(1000, 0.001)] * 50 + [Measured(1000, 0.1)] * 25 + [Measured(100_000, 0.1)] * 25
    found = forecast(measured, num_samples=100, budgets=[("ram", 25_000), ("disk", 40_000)])
    ram, disk = found.tiers
    assert ram.threshold == pytest.approx(0.1 / 1000)
    assert disk.threshold == pytest.approx(0.001 / 1000)


def test_weights_take_the_place_of_seconds_per_byte():
    weights = [1.0] * 90 + [50.0] * 10
    found = forecast([Measured(1000, 1.0)], num_samples=100, budgets=[("ram", 10_000)], weights=weights)
    assert found.tiers[0].threshold == 50.0


def test_a_forecast_from_nothing_is_refused():
    with pytest.raises(ValueError, match="measured"):
        forecast([], num_samples=3, budgets=[])


def test_an_empty_dataset_has_a_forecast():
    found = forecast([Measured(0, 0.0)], num_samples=0, budgets=[("ram", 10)])
    assert found.full_bytes == 0 and found.share == 1.0
