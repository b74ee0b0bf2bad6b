import pytest
from pages import full_run, search, timeline, told_of


@pytest.fixture
def told():
    """Everything a page can hold."""
    run = full_run()
    return told_of(run, tuning=search(run), after=full_run(timeline=timeline(0.4)))
