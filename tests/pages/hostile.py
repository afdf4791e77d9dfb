"""Text that breaks pages and terminals, by the way in which it does.

Every script in it sets `window.ran`; every address in it is one that may never be asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

SCRIPT = "<script>window.ran = 1</script>"
LONG = 10_000  # characters of a word

TEXTS = {
    "tags": f'{SCRIPT}<img src=x onerror="window.ran = 1"><svg onload="window.ran = 1">',
    "quotes": "\"' autofocus onfocus=window.ran=1 onmouseover='window.ran=1' style=\"display:none",
    "ends": f"</style></title></textarea></svg></td></table></details></main></body>{SCRIPT}",
    "comments": f"<!-- --!> <!--> {SCRIPT} <![CDATA[ ]]> <?xml ?> <!DOCTYPE html>",
    "entities": "&lt;b&gt; &amp;amp; &#0; &#x202e; &#128; &nosuchname; &copy &",
    "addresses": "javascript:window.ran=1 //specimen.invalid/a https://specimen.invalid/b?c=<d>",
    "data": f"data:text/html,{SCRIPT} vbscript:x url(https://specimen.invalid/c)",
    "styles": "} * { display: none } @import 'https://specimen.invalid/d.css'; \\3c \\",
    "controls": "".join(map(chr, range(0x20))) + "\x7f",
    "c1": "".join(map(chr, range(0x80, 0xA0))),
    "escapes": "\x1b[2J\x1b[31mred\x1b]0;title\x07 \x9b1m \r\nforged line\rover\b\b\b",
    "noncharacters": "\ufdd0 \ufdef \ufffe \uffff \U0001fffe \U0010ffff",
    "surrogates": "\ud800 \udfff \udc00\ud800",
    "direction": "\u202egpj.exe \u2067left\u2066 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628",
    "combining": "Z" + "\u0301\u0316\u0334" * 40 + " e\u0301",
    "invisible": "a\u200bb\u200cc\u200dd\ufeffe\u2060f\u00adg\u034fh",
    "separators": "a\u2028b\u2029c\x85d\xa0e\u3000f\x0bg\x0ch",
    "astral": "\U0001d4b3 \U0001f469\u200d\U0001f467 \U00010348 \U000e0041 \U000f0000",
    "long": "m" * LONG,
    "templates": "{x} {0} {{}} {x!r:>9} %s %(x)s ${x} {{ x }}",
}
EVERYTHING = " ".join(text for name, text in TEXTS.items() if name != "long")
# What a module of torch may be called: no dot, not empty.
MODULE_NAME = EVERYTHING.replace(".", "")

# Which strings of a report say how to read it: a stored report without them is none.
_STRUCTURE = frozenset({"kind", "status", "check", "stage", "first_failure", "consequence_of"})


def spoil(content: Any) -> Any:
    """Return the content with hostile text for each string, and in the names that users choose.

    Left as they are: the strings that say what is what, and the spellings of numbers.
    """
    return _spoil(content, itertools.cycle(TEXTS.values()), own=False)


def _spoil(value: Any, texts: Iterator[str], *, own: bool) -> Any:
    """own: whether the names in a mapping are the user's, such as those of modules."""
    if isinstance(value, str):
        return value if value in ("nan", "inf", "-inf") else next(texts)
    if isinstance(value, list):
        return [_spoil(item, texts, own=own) for item in value]
    if not isinstance(value, dict):
        return value
    spoilt: dict[str, Any] = {}
    for name, item in value.items():
        kept = name in _STRUCTURE and not own
        users = name.startswith(("norm", "rms", "update_to_weight_by_name", "bytes"))
        spoilt[f"{name} {next(texts)}" if own else name] = (
            item if kept else _spoil(item, texts, own=users)
        )
    return spoilt
