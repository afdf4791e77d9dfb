from __future__ import annotations

from diagnostics.page._frame import document
from diagnostics.page._markup import element
from tests.diagnostics.page.parsing import read
from tests.diagnostics.page.stored_reports import HOSTILE


def test_a_page_is_html_in_english_for_any_width() -> None:
    page = document("A title", element("h1", "Hello"))
    assert page.startswith("<!doctype html>\n<html ")
    assert page.endswith("</html>\n")
    tree = read(page)
    assert tree.one("html").attributes["lang"] == "en"
    assert tree.one("title").text == "A title"
    metas = {m.attributes.get("name"): m.attributes.get("content") for m in tree.all("meta")}
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    assert metas["color-scheme"] == "light dark"


def test_the_policy_loads_nothing_and_runs_nothing() -> None:
    tree = read(document("t", element("p")))
    (policy,) = [m for m in tree.all("meta") if "http-equiv" in m.attributes]
    assert policy.attributes["http-equiv"] == "Content-Security-Policy"
    content = policy.attributes["content"] or ""
    assert content.startswith("default-src 'none'; ")
    assert "script" not in content
    assert not tree.all("script")
    assert not tree.all("link")
    assert not tree.all("img")


def test_the_skip_link_comes_first_and_leads_to_the_content() -> None:
    body = read(document("t", element("h1", "Hello"), footer=element("p", "end"))).one("body")
    names = [node.name for node in body.content if not isinstance(node, str)]
    assert names == ["a", "main", "footer"]
    assert body.all("a")[0].attributes["href"] == "#main"
    assert body.with_id("main").text == "Hello"


def test_it_reloads_only_where_that_is_asked_for() -> None:
    assert 'http-equiv="refresh"' not in document("t", element("p"))
    assert '<meta http-equiv="refresh" content="5">' in document(
        "t", element("p"), refresh_seconds=5
    )


def test_a_hostile_title_is_text() -> None:
    tree = read(document(HOSTILE, element("p")))
    assert "<script>" in tree.one("title").text
    assert not tree.all("script")
