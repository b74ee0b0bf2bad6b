import pytest
from pages import full_run, input_of, search, timeline


@pytest.fixture
def shown():
    """Everything a page can hold."""
    run = full_run()
    return input_of(run, tuning=search(run), after=full_run(timeline=timeline(0.4)))
