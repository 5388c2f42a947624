"""The pages of a run in a real browser: what they show is what the API says, by pointer, by typing and by keyboard."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from browser import Browser
from server import LedgerServer
from tests.web.runs import HELD, HOSTILE, LONG, table, until
from worked_example import RUN, attempt, batch, columns

DEMO_PAGE, HELD_PAGE, LONG_PAGE = "/runs/default/demo", "/runs/pretraining/held", "/runs/pretraining/long"


def find(window: Browser, selector: str) -> Any:
    """The first element that a selector means."""
    return window.driver.find_element(By.CSS_SELECTOR, selector)


def keys(window: Browser, *pressed: str) -> None:
    """Presses keys, one after another, wherever the focus is."""
    ActionChains(window.driver).send_keys(*pressed).perform()


def numbers(cells: Sequence[str]) -> list[int]:
    """Cells that hold whole numbers."""
    return [int(cell.replace(",", "")) for cell in cells]


def test_the_trajectory_has_every_attempt_as_the_api_has_it(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + LONG_PAGE + "/trajectory")
    attempts = server.call("GET", f"{LONG}/trajectory")["attempts"]
    shown = table(window, "Attempts")
    assert [row[0] for row in shown] == [item["attempt"] for item in reversed(attempts)]
    assert len(shown) == 100
    for row, item in zip(shown, reversed(attempts), strict=True):
        updates = item["updates"]
        assert numbers(row[4:8]) == [
            updates["preserved"] + updates["pending"], updates["lost_to_restart"], updates["skipped"], item["recomputed"],
        ]  # fmt: skip
    exposure = server.call("GET", f"{LONG}/exposure")["updates"]
    assert sum(item["updates"]["lost_to_restart"] for item in attempts) == exposure["lost_to_restart"]
    assert sum(item["recomputed"] for item in attempts) == exposure["recomputed"]
    assert f"{exposure['lost_to_restart']:,} applied updates were lost to restarts" in window.text()


def test_a_rollback_and_what_it_left_behind_are_drawn(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + DEMO_PAGE + "/trajectory")
    paths = window.run("return Object.fromEntries([...document.querySelectorAll('.tall path:not(.grid)')].map(p => [p.className.baseVal, p]"
                       ".map((v, i) => i ? v.getAttribute('d') : v)))")  # fmt: skip
    # Ten updates of work: a1 goes from 0 to 7, of which 4 are kept; a2 goes on from 4 to 7.
    assert paths["kept"] == "M0.0 100.0L400.0 50.0M700.0 50.0L1000.0 12.5"
    assert paths["gone"] == "M400.0 50.0L700.0 12.5"
    assert paths["back"] == "M400.0 50.0H700.0"
    assert "risk" not in paths
    assert table(window, "Attempts") == [
        ["a2", "c4 of a1", "5\N{EN DASH}7", "up to 7", "3", "0", "0", "3", "1", "completed", "2026-01-02 00:00"],
        ["a1", "scratch", "1\N{EN DASH}7", "up to 4", "4", "2", "1", "0", "1", "crashed", "2026-01-01 00:00"],
    ]


def test_a_chart_is_read_out_by_the_arrow_keys(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + LONG_PAGE + "/trajectory?newest=10")
    assert len(table(window, "Attempts")) == 10
    find(window, "svg[tabindex]").send_keys(Keys.END)
    newest = server.call("GET", f"{LONG}/trajectory")["attempts"][-1]
    output = find(window, "output")
    assert output.text.startswith(f"attempt {newest['attempt']} · resumed from")
    keys(window, Keys.ARROW_LEFT)
    before = server.call("GET", f"{LONG}/trajectory")["attempts"][-2]
    assert output.text.startswith(f"attempt {before['attempt']} · ")
    assert window.run("return document.querySelectorAll('.cursor.shown').length") == 3


def test_updates_are_drawn_as_the_api_gives_them(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + LONG_PAGE + "/updates")
    course = server.call("GET", f"{LONG}/course?points=400")
    exposure = server.call("GET", f"{LONG}/exposure")["updates"]
    shown = table(window, "Stretches of updates")
    assert len(shown) == len(course["stretches"])
    assert sum(numbers([row[3] for row in shown])) == exposure["preserved"] + exposure["pending"]
    for row, stretch in zip(shown, course["stretches"], strict=True):
        assert row[1:3] == [stretch["attempt"], stretch["fate"]]
        assert row[7] == f"{stretch['series']['token_mean']['mean']:.4f}"
        assert row[5].startswith(f"{stretch['series']['valid_targets']['mean']:,.0f}")


def test_a_range_of_updates_is_chosen_by_typing_and_by_zooming(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + DEMO_PAGE + "/updates")
    for name, value in (("first", "4"), ("last", "6")):
        field = find(window, f"#{name}")
        field.clear()
        field.send_keys(value)
    find(window, "form button").send_keys(Keys.ENTER)
    until(window, "location.search === '?first=4&last=6'")
    # Single updates: 4 of a1, 5 and 6 of a2, each 36 targets in 64 slots.
    assert [row[:1] + row[5:7] for row in table(window, "Stretches of updates")] == [[str(n), "36", "56.2 %"] for n in (4, 5, 6)]
    window.open(server.url + LONG_PAGE + "/updates")
    find(window, "svg[tabindex]").send_keys(Keys.HOME)
    first = table(window, "Stretches of updates")[0][0]
    assert f"updates {first} · " in find(window, "output").text
    keys(window, Keys.ENTER)
    assert until(window, "location.search").startswith("?first=")
    assert len(table(window, "Stretches of updates")) < 30


def test_the_losses_are_told_apart(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + DEMO_PAGE + "/updates")
    text = window.text()
    assert server.call("GET", f"{RUN}/objective")["statement"] in text
    assert "token mean of the newest update\n2.5000 nats" in text
    assert "No update of this range" not in text


def test_coverage_has_every_set_with_its_exact_ranges(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + LONG_PAGE + "/coverage")
    streams = server.call("GET", f"{LONG}/coverage")["streams"]
    shown = window.run(
        "return [...document.querySelectorAll('.lanes')]"
        ".map(table => [...table.tBodies[0].rows].map(row => row.cells[2].firstChild.textContent.trim()))"
    )
    expected = [
        [item["times_seen"].get("1", 0), *(sum(stop - start for start, stop in item[name]) for name in
         ("repeated", "gaps", "without_effect", "passed_over"))] for item in streams
    ]  # fmt: skip
    assert [numbers(lanes) for lanes in shown] == expected
    assert sum(sum(lanes[1:3]) for lanes in expected) > 0
    window.run("document.querySelectorAll('details').forEach(item => item.open = true)")
    for item in streams:
        for start, stop in item["repeated"] + item["gaps"]:
            assert f"{start:,} \N{EN DASH} {stop:,}" in window.text()


def test_a_rate_is_chosen_and_quoted(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + DEMO_PAGE + "/rates")
    Select(find(window, "#quantity")).select_by_value("updates")
    Select(find(window, "#work")).select_by_visible_text("preserved updates")
    find(window, "input[value=checkpoint]").click()
    Select(find(window, "#window")).select_by_value("attempt")
    Select(find(window, "#attempt")).select_by_visible_text("a2")
    find(window, "form button").click()
    until(window, "location.search.includes('work=preserved')")
    answer = server.call("GET", f"{RUN}/rates?quantity=updates&work=preserved&time=update,checkpoint&window=attempt:a2")
    assert find(window, ".quote").text == answer["statement"]
    assert find(window, ".big").text == f"{answer['value']:.4g} updates/s per job"
    assert "with" in answer["statement"]
    assert answer["numerator"] == 3


def test_a_rate_that_is_none_is_refused_in_words(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + DEMO_PAGE + "/rates?time=wall&time=update")
    assert find(window, "[role=alert]").text.startswith("There is no such rate: time is wall, or any of")
    window.complaints()


def test_conventions_and_where_they_changed(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + LONG_PAGE + "/conventions")
    changes = table(window, "Changes between attempts")
    names = [item["attempt"] for item in server.call("GET", LONG)["attempts"]]
    assert changes == [
        [names[20], "optimizer", "AdamW, betas 0.9 0.95", "AdamW, betas 0.9 0.95, eps 1e-15"],
        [names[50], "precision", "bf16", "fp8"],
    ]
    assert ["precision", "fp8", names[50], "overlaid by the attempt"] in table(window, "Conventions")
    assert [row[1:] for row in table(window, "Layout")] == [["dp 2", "2", "50"], ["dp 2, tp 2", "4", "50"]]


def test_findings_say_what_disagrees_and_what_to_do(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + HELD_PAGE)
    find(window, "a.kind[href$='outcome_conflict']").click()
    until(window, "location.search === '?kind=outcome_conflict'")
    text = window.text()
    assert "expected skipped" in text or "expected applied" in text
    assert "settle it with a resolution that names the outcome that stands" in text
    found = server.call("GET", f"{HELD}/findings?kind=outcome_conflict")["findings"]
    assert [item.text.splitlines()[1] for item in window.driver.find_elements(By.CSS_SELECTOR, ".findings li")] == [
        item["message"] for item in found
    ]


def test_a_checkpoint_has_all_that_led_to_it(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + DEMO_PAGE + "/checkpoints")
    assert [row[:4] for row in table(window, "Checkpoints")] == [["c7", "a2", "7", "accepted"], ["c4", "a1", "4", "accepted"]]
    find(window, "tbody a").click()
    until(window, "location.pathname.endsWith('/checkpoints/c7')")
    report = server.call("GET", f"{RUN}/checkpoints/c7/exposure")
    heads = window.run("return [...document.querySelector('.wide table').tHead.rows[0].cells].map(cell => cell.innerText)")
    applied = window.run("return [...document.querySelector('.wide tbody').rows[0].cells].map(cell => cell.innerText)")
    assert numbers(applied[2:]) == [report["exposure"][name.replace(" ", "_")]["applied"] for name in heads[2:]]
    assert report["exposure"]["valid_targets"]["applied"] == 252
    assert [row[1:] for row in table(window, "The path")] == [["a1", "up to 4"], ["a2", "5 to 7"]]


def test_a_checkpoint_of_a_hostile_name_opens(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + HELD_PAGE + "/checkpoints")
    window.complaints()
    find(window, "tbody a").click()
    until(window, "location.pathname.includes('/checkpoints/')")
    assert f"Checkpoint {HOSTILE}" in window.text()
    assert window.run("return document.images.length") == 0
    assert window.complaints() == []


@pytest.mark.parametrize("part", ["", "/trajectory", "/updates", "/coverage", "/findings", "/conventions", "/checkpoints"])
def test_hostile_names_are_text_on_every_page(server: LedgerServer, window: Browser, part: str) -> None:
    window.complaints()
    window.open(server.url + HELD_PAGE + part)
    assert window.run("return document.images.length + document.querySelectorAll('script:not([src])').length") == 0
    assert window.complaints() == []


def test_runs_are_filtered_by_typing_a_project(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + "/")
    find(window, "#project").send_keys("pretraining", Keys.ENTER)
    until(window, "location.search.includes('project=pretraining')")
    assert [row[0] for row in table(window, "Runs")] == ["pretraining/held", "pretraining/long"]
    window.driver.find_element(By.LINK_TEXT, "by name").click()
    until(window, "location.search.includes('sort=name')")
    assert [row[0] for row in table(window, "Runs")] == ["pretraining/held", "pretraining/long"]
    find(window, "tbody a").click()
    until(window, "location.pathname === '/runs/pretraining/held'")


def test_a_page_renews_itself_and_keeps_focus_scroll_and_what_is_open(server: LedgerServer, window: Browser) -> None:
    run = "/v1/projects/live/runs/live"
    server.call("PUT", run, {})
    server.call("PUT", f"{run}/attempts/a1", attempt(1, None))
    for rank in (0, 1):
        server.call("POST", f"{run}/attempts/a1/events", batch(rank, updates=columns(1, dict.fromkeys(range(1, 40), "applied"), rank)))
    window.size(1280, 400)
    window.open(server.url + "/runs/live/live/updates")
    window.run(
        "document.querySelector('details').open = true; document.querySelector('#first').value = '7';"
        "document.querySelector('#objective').scrollIntoView(); document.querySelector('summary').focus()"
    )
    before = window.run("return window.scrollY")
    assert before > 0
    for rank in (0, 1):
        server.call("POST", f"{run}/attempts/a1/events", batch(rank, updates=columns(40, {40: "applied"}, rank)))
    window.run("document.dispatchEvent(new Event('visibilitychange'))")
    until(window, "document.querySelector('.lead').innerText.startsWith('40 applied updates')")
    assert window.run("return [window.scrollY, document.activeElement.tagName, document.querySelector('details').open]") == [
        before, "SUMMARY", True,
    ]  # fmt: skip
    assert find(window, "#first").get_attribute("value") == "7"
    find(window, "[data-pause] button").click()
    assert find(window, "[data-pause] button").get_attribute("aria-pressed") == "true"
    server.call("PATCH", f"{run}/attempts/a1", {"ended": "completed"})
    window.run("document.dispatchEvent(new Event('visibilitychange'))")
    find(window, "[data-pause] button").click()
    window.run("document.dispatchEvent(new Event('visibilitychange'))")
    until(window, "document.querySelector('.state').innerText === 'a1 completed' && !document.querySelector('main[data-refresh-seconds]')")


def test_a_page_is_walked_by_keyboard_with_the_focus_in_sight(server: LedgerServer, window: Browser) -> None:
    window.open(server.url + LONG_PAGE + "/updates")
    keys(window, Keys.TAB)
    assert window.run("return document.activeElement.innerText") == "Skip to the content"
    seen = []
    for _ in range(27):
        keys(window, Keys.TAB)
        seen.append(window.run(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return [e.tagName.toLowerCase(), e.innerText || e.id, s.outlineStyle, parseFloat(s.outlineWidth)]"
        ))  # fmt: skip
    assert [item for item in seen if item[2] == "none" or item[3] < 1] == []
    assert {"a", "input", "button", "svg"} <= {item[0] for item in seen}


@pytest.mark.parametrize("page", ["/", LONG_PAGE, LONG_PAGE + "/trajectory", LONG_PAGE + "/updates", LONG_PAGE + "/coverage"])
def test_pictures_have_words_and_headings_are_in_order(server: LedgerServer, window: Browser, page: str) -> None:
    window.open(server.url + page)
    named = "e.getAttribute('aria-label') || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent"
    assert window.run(f"return [...document.querySelectorAll('svg[role=img]')].every(e => {named})")
    assert window.run("return [...document.querySelectorAll('svg:not([role=img])')].every(e => e.closest('[aria-hidden]'))")
    levels: list[int] = window.run("return [...document.querySelectorAll('h1,h2,h3,h4')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert window.run("return [...document.querySelectorAll('input:not([type=hidden]),select')].every(e => e.labels.length)")
    assert window.run("return [...document.querySelectorAll('thead th')].every(e => e.scope === 'col')")
