import pytest
from pages import full_run, input_of, search, timeline

from hasten.reports.page.page import page


@pytest.fixture(scope="session")
def shown():
    """Everything a page can hold."""
    run = full_run()
    return input_of(run, tuning=search(run), after=full_run(timeline=timeline(0.4)))


@pytest.fixture(scope="session")
def html(shown):
    """The page of it, drawn once: to draw one takes a second."""
    return page(shown)
