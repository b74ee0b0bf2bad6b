"""The page says what the records say, carries nothing from outside, and survives whatever a record holds."""

import base64
import gzip
import json
import math
import re
import time
from dataclasses import replace

import msgspec
import pytest
import runs
from pages import full_run, input_of, on_a_gpu, search, timeline

from hasten.records import Bar, Run, Step, Timeline, Where
from hasten.reports.page.page import essentials, page

CHARTS = ["timeline", "trials", "losses", "steps", "stages", "machine"]


def charts_of(html):
    return re.findall(r'data-chart="(\w+)"', html)


def labels(html, chart):
    """What the marks of a chart, drawn wide, say."""
    figure = (
        html.partition(f'data-chart="{chart}"')[2].partition("</figure>")[0].partition('class="drawing narrow"')[0]
    )
    return [
        text.replace("&quot;", '"').replace("&amp;", "&")
        for text in re.findall(
            r'aria-label="([^"]*)" role="graphics-symbol"|role="graphics-symbol"[^>]*aria-label="([^"]*)"', figure
        )
        for text in text
        if text
    ]


def test_a_page_answers_every_question_in_order(html):
    found = charts_of(html)
    assert [name for name in CHARTS if name in found] == CHARTS
    assert found.index("timeline") < found.index("trials") < found.index("machine")
    order = [
        'id="pair"',
        "What made it faster",
        "<p>Quality check",
        "Next: ",
        'id="step"',
        'id="findings"',
        'id="details"',
    ]
    assert [html.index(part) for part in order] == sorted(html.index(part) for part in order)
    assert len(html.encode()) < 2_000_000


def test_a_page_asks_the_network_for_nothing(html):
    html = html.replace("http://www.w3.org/", "")
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", html)
    assert "http://" not in html and "https://" not in html and "@import" not in html


def test_the_timelines_figures_are_the_records(shown, html):
    found = [text for text in labels(html, "timeline") if text.startswith(("main", "worker"))]
    wanted = len(shown.run.timeline.bars) + len(shown.after.timeline.bars)
    assert len(found) == wanted
    assert found.count("main: data wait 60.0 ms, starting at 0 ms") == 1
    assert "worker 1: decode 80.0 ms, starting at 10.0 ms" in found


def test_the_steps_bar_says_each_phase(shown, html):
    section = html.partition('id="step"')[2].partition("</section>")[0]
    text = " ".join(re.sub(r"<[^>]+>", " ", section).split())
    large = [name for name, seconds in shown.diagnosis.breakdown.phases.items() if seconds and seconds > 0.001]
    assert len(re.findall(r'class="row"', section)) >= len(large) - 1
    assert "data wait 60.0 ms, " in text and "tuned: 60.0 ms, " in text
    assert "With instant data loading: " in text
    widths = [float(width) for width in re.findall(r"--share: ([\d.]+)", section)]
    assert max(widths) == 100.0 and min(widths) >= 0.0


@pytest.mark.slow
def test_steps_under_a_part_of_the_plan_are_named_by_it(shown):
    assert "with cache = auto" in page(replace(shown, under={"cache": "auto"}))
    assert "with cache = auto" not in page(replace(shown, under=shown.tuning.settings))


def test_trials_stand_in_the_forest_with_their_intervals(html):
    found = labels(html, "trials")
    assert any(text.startswith("1. cache = auto: 1.80x (1.60 to 2.00), kept, 4 pairs") for text in found)
    assert any(text.startswith("the whole plan: 1.80x") for text in found)
    assert not any("compile" in text for text in found), "a trial without a ratio has no place among ratios"


def test_the_proof_tells_both_sides_and_their_difference(html):
    text = re.sub(r"<[^>]+>", " ", html)
    assert re.search(r"step time\s+3\s+100 ms ± 2.0 ms\s+55.0 ms ± 1.0 ms\s+-45 ms \(-47 to -43\)", text)
    assert re.search(r"loss\s+2\s+1.55 ± 0.0707\s+1.56 ± 0.0778\s+0.005 \(-0.05 to 0.06\)", text)
    assert re.search(r"metric\s+1\s+0.8\s+0.81\s", text)


def test_the_page_says_how_full_the_cache_is_and_what_came_from_it(html):
    assert "RAM: 768 MiB of 1.0 GiB; 70% hit rate" in html


def test_the_record_can_be_taken_from_the_page(shown, html):
    data = re.search(r'href="data:application/gzip;base64,([^"]+)"', html)
    assert data is not None
    record = json.loads(gzip.decompress(base64.b64decode(data[1])))
    assert msgspec.convert(record["run"], Run) == shown.run
    assert record["tuning"]["id"] == shown.tuning.id


def test_a_slow_step_is_marked_with_its_cause(html):
    found = labels(html, "steps")
    assert any("checkpoint took 400 ms longer than usual" in text for text in found)


def test_a_device_has_its_own_panels():
    run = on_a_gpu()
    html = page(input_of(run))
    for title in ("GPU busy", "GPU memory, GiB", "GPU power, W", "GPU temperature"):
        assert title in html


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": runs.steps(phases={}, count=12)},
        {"steps": runs.steps(count=1)},
        {"resources": ()},
        {"loaders": ()},
        {"timeline": None},
        {"timeline": Timeline(start=0.0, seconds=0.0, step_ends=(), bars=())},
        {"overhead": None, "interventions": ()},
    ],
    ids=["no phases", "one step", "no samples", "no loaders", "no timeline", "an empty timeline", "nothing tried"],
)
def test_what_is_missing_is_left_out(changes):
    html = page(input_of(full_run(**changes)))
    assert "<h1>" in html and "nan" not in re.sub(
        r"<style>.*?</style>|base64,[^\"]+", "", html.lower(), flags=re.DOTALL
    ).replace("nano", "")


def test_what_the_script_was_seen_under_is_said_beside_the_plans_figures():
    tuning = search(full_run())
    loss = next(sides for sides in tuning.proof.measured if sides.what == "loss")
    drawn = msgspec.structs.replace(loss, reference_settings={"loader": True, "num_workers": 2})
    proof = msgspec.structs.replace(tuning.proof, measured=(drawn,), reference_settings={"loader": True})
    html = page(input_of(full_run(), tuning=msgspec.structs.replace(tuning, proof=proof)))
    assert "compared with baseline with loader, num_workers = 2" in html
    assert any(text.startswith("baseline with loader") for text in labels(html, "losses"))


def test_losses_that_are_not_finite_are_gaps():
    run = full_run()
    tuning = search(run)
    proof = msgspec.structs.replace(tuning.proof, baseline_losses=(2.0, None, math.nan, 1.5), plan_losses=(None,) * 4)
    html = page(input_of(run, tuning=msgspec.structs.replace(tuning, proof=proof)))
    assert len([text for text in labels(html, "losses") if text.startswith(("baseline", "tuned"))]) == 2


HOSTILE = [
    "/home/<script>alert(1)</script>/train.py",
    "/home/\"quoted\" 'twice'/train.py",
    "/home/" + "very_long_" * 30 + ".py",
    "/home/\udcff\udcfe/caf\u00e9\x1b[31m.py",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_and_do_nothing(name):
    place = Where(file=name, line=3, function="<lambda>", source=f"open({name!r})")
    bars = (Bar(lane="main", kind="</svg><script>alert(2)</script>", start=0.0, seconds=0.1), *timeline().bars)
    run = full_run(
        command=(name, "--x", name),
        directory=name,
        facts={"where": {"forward": place, "data_wait": place}},
        timeline=msgspec.structs.replace(timeline(), bars=bars),
    )
    run = msgspec.structs.replace(
        run,
        facts=msgspec.structs.replace(
            run.facts, loaders=(msgspec.structs.replace(run.facts.loaders[0], name=name, where=place),)
        ),
    )
    html = page(input_of(run, tuning=search(run)))
    html.encode("utf-8")
    assert "<script>alert" not in html and "</svg><script" not in html and "\x1b" not in html


@pytest.mark.slow
def test_a_page_of_very_many_steps_is_small_and_soon_written():
    seconds = [0.01 * (1 + 0.1 * ((n * 31) % 17) / 17) for n in range(100_000)]
    steps = tuple(Step(index=n, start=0.011 * n, seconds=s, marked=n % 2 == 1) for n, s in enumerate(seconds))
    run = full_run(steps=steps)
    shown = input_of(run)
    began = time.process_time()
    html = page(shown)
    assert len(html.encode()) < 2_000_000
    assert time.process_time() - began < 60, "it does not look at each step many times"


def test_a_notebook_gets_the_essentials(shown):
    html = essentials(shown)
    assert "<svg" in html and shown.diagnosis.verdict in html and ":root" not in html


def test_each_training_recipe_that_was_run_is_on_the_page(shown, html):
    assert shown.tuning.screening_runs and "Training recipes, one full run each" in html


def test_a_tuned_page_shows_one_pair_the_fixes_that_were_kept_and_the_command_to_run(html):
    head = " ".join(re.sub(r"<[^>]+>", " ", html.partition("<header>")[2].partition("</header>")[0]).split())
    assert "baseline 320 samples/s" in head and "tuned 576 samples/s" in head
    assert "cache = auto 1.80x faster (1.60 to 2.00)" in head and "bf16" not in head, "only what was kept"
    assert "Quality check passed" in head and "Next: hasten run " in head


def test_a_page_of_a_diagnosis_leads_to_tuning():
    html = page(input_of(full_run()))
    assert "Next: <code>hasten tune " in html and 'id="pair"' not in html and "step time" in html


def test_the_title_is_the_script_without_its_folders():
    run = full_run(command=("/home/ada/very/deep/train.py", "--lr", "1"))
    html = page(input_of(run))
    assert "<title>hasten: train.py --lr 1</title>" in html and 'title="/home/ada/very/deep/train.py --lr 1"' in html
