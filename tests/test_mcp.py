"""The MCP server, asked by the SDK's own client: tools, structured results, progress, cancellation, errors."""

import sys
import time

import anyio
import pytest
from command import running_in, train, write
from pages import full_run, search
from test_results import keep

pytest.importorskip("mcp.server.mcpserver")
from mcp import Client, StdioServerParameters

from hasten.integrations.mcp_server import make_server

pytestmark = pytest.mark.slow


def ask(tool, arguments, **options):
    """The result of one call, in this process."""

    async def call():
        async with Client(make_server()) as client:
            return await client.call_tool(tool, arguments, **options)

    return anyio.run(call)


def test_the_tools_describe_themselves():
    async def listed():
        async with Client(make_server()) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in anyio.run(listed)}
    assert {*tools} == {"diagnose", "tune", "prove", "report", "explain"}
    assert all(tool.description and tool.output_schema for tool in tools.values())
    assert {*tools["diagnose"].input_schema["required"]} == {"command", "directory"}
    reading = {name for name, tool in tools.items() if tool.annotations.read_only_hint}
    assert reading == {"report", "explain"}, "the others run what the model gives them"


def test_a_finding_is_explained_over_standard_input_and_output():
    async def call():
        server = StdioServerParameters(command=sys.executable, args=["-m", "hasten", "mcp"])
        async with Client(server) as client:
            return await client.call_tool("explain", {"name": "slow_decode"})

    assert "decode" in anyio.run(call).structured_content["text"]


def test_saved_results_are_reported_as_structures(tmp_path):
    keep(tmp_path, full_run())
    diagnosis = ask("report", {"directory": str(tmp_path)}).structured_content
    diagnosis = diagnosis.get("result", diagnosis)
    assert diagnosis["seconds_per_step"] > 0 and diagnosis["findings"][0]["saves_share"] > 0
    keep(tmp_path, search(full_run()))
    tuning = ask("report", {"directory": str(tmp_path)}).structured_content
    tuning = tuning.get("result", tuning)
    assert tuning["speedup"] == [1.8, 1.6, 2.0] and tuning["settings"] == {"cache": "auto", "num_workers": 2}
    assert tuning["next"].startswith("hasten run ")


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("diagnose", {"command": "nothing.py"}, "no such script: nothing.py"),
        ("report", {}, "no saved run here"),
        ("diagnose", {"command": "train.py 'open"}, "is not a valid command line (No closing quotation)"),
        ("prove", {"new": "a.py"}, "give either `old` or `revision`"),
        ("diagnose", {"command": "train.py", "directory": "/nowhere"}, "no such directory: /nowhere"),
    ],
)
def test_what_is_wrong_comes_back_as_the_commands_own_line(tmp_path, tool, arguments, says):
    result = ask(tool, {"directory": str(tmp_path), **arguments})
    assert result.is_error and says in result.content[0].text


def test_modules_of_the_users_folder_do_not_take_the_place_of_pythons(tmp_path):
    write(tmp_path / "statistics.py", "raise SystemExit('the wrong one')")
    assert "no saved run here" in ask("report", {"directory": str(tmp_path)}).content[0].text


def test_a_failing_script_comes_back_with_the_end_of_its_output(tmp_path):
    write(tmp_path / "train.py", "raise ZeroDivisionError('on purpose')")
    result = ask("diagnose", {"command": "train.py", "directory": str(tmp_path)})
    assert result.is_error and "on purpose" in result.content[0].text and "exit code 1" in result.content[0].text


def test_a_script_is_diagnosed_with_progress(tmp_path):
    write(tmp_path / "train.py", train())
    heard = []

    async def hear(progress, total, message):
        heard.append((progress, message))

    arguments = {"command": "train.py", "directory": str(tmp_path), "seconds": 6, "quick": True}
    result = ask("diagnose", arguments, progress_callback=hear)
    assert not result.is_error and result.structured_content["verdict"]
    assert heard and heard == sorted(heard, key=lambda one: one[0])


def test_a_cancelled_call_ends_everything_that_it_started(tmp_path):
    write(tmp_path / "train.py", train())

    async def call():
        async with Client(make_server()) as client:
            with anyio.move_on_after(6):
                await client.call_tool("diagnose", {"command": "train.py", "directory": str(tmp_path)})

    anyio.run(call)
    until = time.monotonic() + 20
    while running_in(tmp_path) and time.monotonic() < until:
        time.sleep(0.2)
    assert running_in(tmp_path) == []
