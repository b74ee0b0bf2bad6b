import pytest
from pages import full_run, search, timeline, told_of

from hasten.reports.page.page import page


@pytest.fixture(scope="session")
def told():
    """Everything a page can hold."""
    run = full_run()
    return told_of(run, tuning=search(run), after=full_run(timeline=timeline(0.4)))


@pytest.fixture(scope="session")
def html(told):
    """The page of it, drawn once: to draw one takes a second."""
    return page(told)
