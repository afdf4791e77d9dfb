from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
import torch

from diagnostics import CheckResult, Pipeline, Report, Status, diagnose
from diagnostics._catalog import CATALOG
from diagnostics.page import render_report_fragment, render_report_page
from tests.diagnostics.page.parsing import Node, read
from tests.diagnostics.page.stored_numbers import NUMBERS
from tests.diagnostics.page.stored_reports import HOSTILE, failing, healthy, report, result
from tests.diagnostics.tiny import Bigram


def page(content: dict[str, Any]) -> Node:
    return read(render_report_page(content))


def hostile() -> dict[str, Any]:
    """Return the failing report with a hostile text behind every text and name in it."""

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {name + HOSTILE: spoil(item) for name, item in value.items()}
        if isinstance(value, list):
            return [spoil(item) for item in value]
        return value + HOSTILE if isinstance(value, str) else value

    content = failing()
    for entry in content["results"]:
        spoilt = {name: spoil(item) for name, item in entry.items() if name != "status"}
        entry.update(spoilt)
    parts = {name: spoil(content[name]) for name in ("notes", "environment", "debug")}
    options = {"only": [HOSTILE], "skip": HOSTILE, "fast": HOSTILE, "overfit_steps": [[HOSTILE]]}
    parts["subject"] = {"model": HOSTILE, "weights_sha256": HOSTILE, "options": options}
    return content | parts | {"seed": HOSTILE, "schema_version": HOSTILE, "first_failure": HOSTILE}


def test_the_verdict_comes_first_then_counts_path_checks_figures_environment_and_origin() -> None:
    tree = page(failing())
    assert [node.name for node in tree.one("main").content if isinstance(node, Node)][:2] == [
        "section",
        "ul",
    ]
    assert tree.one("main").all()[0].classes == ["headline", "card", "fail-edge"]
    assert [node.text for node in tree.all("h2")] == [
        "The path",
        "The checks",
        "Figures to note before asking",
        "Environment",
        "How it was measured",
    ]


def test_there_is_one_h1_and_no_level_of_headings_is_left_out() -> None:
    for content in (failing(), healthy(), report()):
        levels = [int(n.name[1]) for n in page(content).all() if re.fullmatch("h[1-6]", n.name)]
        assert levels.count(1) == 1
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_bad_news_is_open_and_good_news_is_closed() -> None:
    tree = page(failing())
    opened = {n.one("h4").text: "open" in n.attributes for n in tree.all("details", "check")}
    assert opened == {
        "environment": False,
        "range": True,
        "text": True,
        "shift": False,
        "loss": True,
        "padding": False,
        "evaluation": True,
    }


def test_every_check_stands_below_its_stage_in_the_order_of_the_report() -> None:
    tree = page(healthy())
    found = [(s.one("h3").text, [h.text for h in s.all("h4")]) for s in tree.all("", "stage")]
    assert [name for _, names in found for name in names] == list(CATALOG)
    assert all(CATALOG[name].stage == stage for stage, names in found for name in names)


def test_a_stage_says_which_of_its_checks_were_not_asked_for() -> None:
    stage = page(report(result("shift"))).with_id("stage-batches")
    assert stage.one("p", "unasked").text == "Not asked for: batches"


def test_every_link_leads_somewhere_and_no_id_stands_twice() -> None:
    for content in (failing(), healthy(), hostile(), report(result("shift"), result("shift"))):
        tree = page(content)
        ids = [n.attributes["id"] for n in tree.all() if "id" in n.attributes]
        assert len(ids) == len(set(ids))
        links = [n.attributes["href"] or "" for n in tree.all("a")]
        assert links
        assert all(link[0] == "#" and link[1:] in ids for link in links)
        labels = [n.attributes.get("aria-labelledby") or "" for n in tree.all()]
        assert {label for names in labels for label in names.split()} <= set(ids)


def test_tables_have_captions_and_scopes_and_scroll_in_a_region_that_keys_reach() -> None:
    tree = page(failing())
    for region in tree.all("div", "scroll"):
        assert region.attributes["role"] == "region"
        assert region.attributes["tabindex"] == "0"
        assert region.attributes["aria-label"] == region.one("caption").text
        assert all(head.attributes["scope"] in ("col", "row") for head in region.all("th"))


def test_a_status_is_a_word_and_its_symbol_is_not_read_aloud() -> None:
    for shown in page(failing()).all("span", "state"):
        symbol = shown.one("span")
        assert symbol.attributes["aria-hidden"] == "true"
        assert shown.text != symbol.text


def test_a_stored_report_gives_the_same_bytes_whatever_the_order_of_its_names() -> None:
    content = healthy()
    content["results"][0]["numbers"] = {"b": {"x.10": 1, "x.2": 2}, "a": [{"d": 1, "c": 2}]}
    stored = json.loads(json.dumps(content, sort_keys=True))
    assert render_report_page(stored) == render_report_page(content)
    assert render_report_page(content) == render_report_page(content)


def test_what_an_older_file_did_not_write_is_left_out() -> None:
    """Three keys are all that a verdict needs; the rest of the page says what is not there."""
    bare = {"results": [{"check": "shift", "status": "pass", "stage": "batches"}]}
    tree = page(bare)
    assert tree.one("h1").text == "\N{CHECK MARK} 1 check passed"
    assert "The report holds no environment." in tree.one("main").text


@pytest.mark.parametrize("content", [{}, {"results": None}, {"results": "abc"}, {"results": [1]}])
def test_what_is_no_report_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="wanted the content of a report"):
        render_report_page(content)


def test_an_unknown_status_is_refused_rather_than_shown_as_good_news() -> None:
    with pytest.raises(ValueError, match="got 'fine' for the check 'shift'"):
        render_report_page(report(result("shift", "fine")))


def test_hostile_texts_add_no_element_and_no_attribute() -> None:
    """The plain page and the spoilt one have the same kinds of elements and attributes."""

    def kinds(tree: Node) -> set[tuple[str, ...]]:
        return {(node.name, *sorted(node.attributes)) for node in tree.all()}

    tree = page(hostile())
    assert "<script>alert(1)</script>" in tree.one("h1").text
    assert kinds(tree) <= kinds(page(failing())) | kinds(page(healthy())) | {("h4",)}
    assert not [node for node in tree.all() if node.name in ("script", "img", "iframe", "link")]
    assert not [a for node in tree.all() for a in node.attributes if a.startswith("on")]


def test_hostile_texts_leave_no_character_that_hides_or_turns_others() -> None:
    for made in (render_report_page(hostile()), render_report_fragment(hostile())):
        made.encode("utf-8")
        assert all(c.isprintable() or c == "\n" for c in made)


def test_no_page_shows_a_date_a_duration_or_a_script() -> None:
    made = render_report_page(healthy())
    assert "<script" not in made
    assert "javascript:" not in made
    timed = healthy()
    for entry in timed["results"]:
        entry["seconds"] = 1.2345
    assert render_report_page(timed) == made


def test_a_page_stays_small() -> None:
    """The texts of all checks are about 60 kB; a notebook keeps a tenth of that."""
    assert len(render_report_page(healthy())) < 150_000
    assert len(render_report_fragment(healthy())) < 30_000


def test_a_fragment_has_no_ids_no_links_and_no_headings_above_the_third_level() -> None:
    """It may stand several times in one notebook, whose outline it must not take over."""
    for content in (failing(), healthy()):
        tree = read(render_report_fragment(content))
        (root,) = tree.content
        assert isinstance(root, Node)
        assert root.classes == ["diagnostics-report"]
        assert not tree.all("a")
        assert not [n for n in tree.all() if "id" in n.attributes]
        assert [n.name for n in tree.all() if re.fullmatch("h[1-6]", n.name)] == ["h3"]


def test_a_fragment_tells_every_verdict_and_folds_the_good_ones_away() -> None:
    tree = read(render_report_fragment(failing()))
    names = [node.one("summary").one("b").text for node in tree.all("details", "skip-check")]
    assert names == ["padding"]
    folded = tree.one("details", "passed")
    assert folded.all("summary")[0].text == "2 checks passed"
    assert [n.one("b").text for n in folded.all("details")] == ["environment", "shift"]
    assert not [node for node in tree.all("details") if "open" in node.attributes]


def test_a_report_makes_its_own_page_and_its_own_fragment() -> None:
    own = Report(
        results=(CheckResult(check="shift", status=Status.PASS, reason="shift.ok", claim="fits"),)
    )
    assert own.to_html() == render_report_page(own.to_dict())
    assert own._repr_html_() == render_report_fragment(own.to_dict())


def test_a_measured_report_and_its_json_file_give_the_same_bytes() -> None:
    """The figures and tables go by names and numbers, never by the order they were measured in."""
    torch.manual_seed(0)
    ids = torch.randint(11, (400,))
    pipeline = Pipeline(Bigram(), train_ids=ids, vocab_size=11, block_size=8)
    found = diagnose(pipeline, only=["range", "shapes", "forward_hooks", "gradients"])
    assert render_report_page(json.loads(found.to_json())) == found.to_html()


def test_how_it_was_measured_tells_weights_ids_and_options_in_a_table() -> None:
    options = {"only": None, "skip": ["loss"], "fast": False, "overfit_steps": 300}
    subject = {"model": "GPT", "weights_sha256": "ab" * 32, "val_ids_sha256": None}
    tree = page(healthy() | {"subject": subject | {"options": options}})
    caption = "What was measured, and the options of the run"
    table = next(t for t in tree.all("table") if t.one("caption").text == caption)
    assert [[cell.text for cell in row.all("td")] for row in table.one("tbody").all("tr")] == [
        ["GPT"],
        ["abababababab..."],
        ["not known"],
        ["all"],
        ["loss"],
        ["no"],
        ["300"],
    ]
    assert "does not say which weights and ids" in page(healthy()).one("main").text


def influence(**fields: Any) -> dict[str, Any]:
    return result("causal_independence", numbers=NUMBERS["causal_independence"], **fields)


def sources(*results: dict[str, Any]) -> list[str]:
    return [line.text for line in page(report(*results)).all("p", "source")]


def test_a_picture_tells_what_failed_in_it_and_a_healthy_one_its_check_alone() -> None:
    assert sources(influence()) == ["causal_independence"]
    (bad,) = sources(influence(status="fail", claim="position 0 reads token 1"))
    assert bad.endswith("failed causal_independence \N{EN DASH} position 0 reads token 1")
    upstream = result("loss", "fail")
    (bad,) = sources(upstream, influence(status="fail", consequence_of="loss"))
    assert bad.endswith("\N{EN DASH} likely a consequence of loss: mend that first")


def test_a_picture_stands_for_the_fault_of_another_check_that_can_be_seen_in_it() -> None:
    context = result("context", "fail", claim="no prediction reads an earlier token")
    own, other = sources(influence(), context)
    assert own == "causal_independence"
    assert other.endswith("failed context \N{EN DASH} no prediction reads an earlier token")
    tree = page(report(influence(), context))
    links = [n.attributes["href"] for n in tree.one("section", "headline").all("a")]
    assert "#figure-influence" in links


def test_paper_is_told_what_it_leaves_out() -> None:
    text = page(healthy()).one("p", "paper-only").text
    assert "numbers and texts of checks that passed, were skipped" in text


def test_the_environment_is_told_once() -> None:
    content = report(result("environment", numbers={"python": "3.12.1"}))
    content["environment"] = {"python": "3.12.1"}
    tree = page(content)
    assert tree.with_id("check-environment").all("table") == []
    assert page(failing()).with_id("check-range").all("table")


def test_the_id_to_allow_a_finding_by_stands_where_there_is_a_finding() -> None:
    tree = page(failing())
    assert "range.fail" in tree.with_id("check-range").text
    assert "environment.pass" not in tree.with_id("check-environment").text
