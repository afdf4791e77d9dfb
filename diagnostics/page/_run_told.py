"""What was said during a run: the messages of a monitor, and the texts that the model wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diagnostics._text import say
from diagnostics.page._markup import Child, Markup, element, isolate
from diagnostics.page._parts import prose
from diagnostics.page._run_history import (
    EVENTS_MAX,
    RunHistory,
    few_events,
    few_samples,
    plain_events,
)

OPEN_MAX = 12  # messages in the open, so that the curves below them are found
CLOSING = "monitor.summary"  # counts again what stands beside each message


def messages(run: RunHistory) -> Markup:
    """Return the messages in the order in which they came, each with its count by now."""
    told = [event for event in plain_events(run.events) if event.get("reason") != CLOSING]
    items = [_message(event) for event in few_events(told)]
    left_out = len(told) - len(items) + run.events_left_out
    if left_out:
        more = say("and {n:message|messages} more between these", n=left_out)
        items.insert(EVENTS_MAX // 2, element("li", element("span"), element("p", more)))
    shown = element("ul", items[:OPEN_MAX], class_="readings")
    if len(items) <= OPEN_MAX:
        return shown
    rest = element("ul", items[OPEN_MAX:], class_="readings")
    label = say("{n:later message|later messages}", n=len(told) + run.events_left_out - OPEN_MAX)
    return element("div", shown, element("details", element("summary", label), rest))


def samples(run: RunHistory) -> Markup:
    """Return the samples, the newest first: that is the one to judge the model by."""
    losses = dict(run.points("validation_loss"))
    items = []
    for sample in reversed(few_samples(run.samples)):
        loss = losses.get(sample.step)
        head = say("after step {step}", step=f"{sample.step:,}")
        if loss is not None:
            head = say("{head}, validation loss {loss}", head=head, loss=loss)
        given = element("span", isolate(sample.prompt), class_="prompt") if sample.prompt else None
        text = element("pre", given, isolate(sample.text), class_="sample")
        items.append(element("li", element("h3", head), text))
    note = say("Underlined is what it was given to go on from; the rest is its own.")
    told = any(sample.prompt for sample in run.samples)
    return element(
        "div",
        element("p", note, class_="quiet") if told else None,
        element("ul", items, class_="samples"),
    )


def _message(event: Mapping[str, Any]) -> Markup:
    step = event.get("step")
    where = say("message") if step is None else say("step {step}", step=step)
    return element(
        "li",
        element("span", f"! {where}", class_="state warn"),
        element("div", [element("p", line) for line in _lines(event)]),
    )


def _lines(event: Mapping[str, Any]) -> Iterator[Child]:
    yield prose(str(event.get("claim", "")))
    if event.get("expected"):
        yield ["expected ", prose(str(event["expected"]))]
    if event.get("cause"):
        cause = str(event["cause"])
        yield prose(cause[:1].upper() + cause[1:])
    count, reason = event.get("count") or 1, event.get("reason")
    seen: list[Child] = []
    if isinstance(count, int) and count > 1:
        seen.append(
            say("seen {n} times, last at step {last}", n=count, last=event.get("last_step"))
        )
    if reason:
        seen.append(element("code", isolate(reason)))
    if seen:
        yield element("span", [[part, " "] for part in seen], class_="quiet small")
