"""Draw every page, to be looked at: `python -m tests.pages.pictures FOLDER [--only NAME ...]`.

Writes NAME-SCENE.png for a phone, the narrowest phone and a desk, by day and by night, with all
details opened and closed, and NAME-paper.pdf; where pdftoppm is installed, also the sheets as PNG.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pages import browser
from tests.pages.browser import DESKTOP, NARROW, PHONE, view
from tests.pages.specimens import PAGES, page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# name -> (size, dark, all details opened)
SCENES = {
    "desk-day": (DESKTOP, False, False),
    "desk-night": (DESKTOP, True, False),
    "desk-open": (DESKTOP, False, True),
    "phone-day": (PHONE, False, False),
    "phone-night-open": (PHONE, True, True),
    "narrow-open": (NARROW, False, True),
}
SHEETS_DPI, SHEETS_MAX = 60, 12
HEIGHT_MAX = 16_000  # CSS pixels; Chromium draws no more into one picture


def main(arguments: list[str] | None = None) -> int:
    """Draw what was asked for and say where it is; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.pages.pictures", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=PAGES, default=list(PAGES), metavar="NAME")
    parser.add_argument("--scenes", nargs="*", choices=SCENES, default=list(SCENES))
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    with browser.chromium() as started:
        for name in options.only:
            (options.folder / f"{name}.html").write_bytes(page(name).encode())
            for scene in options.scenes:
                draw(started, name, scene, options.folder / f"{name}-{scene}.png")
            draw_paper(started, name, options.folder / f"{name}-paper.pdf")
            print(f"{name}: drawn into {options.folder}")
    return 0


def draw(started: Browser, name: str, scene: str, path: Path) -> None:
    """Write a picture of the whole page."""
    size, dark, opened = SCENES[scene]
    with view(started, page(name), size=size, dark=dark) as shown:
        if opened:
            shown.open_details()
        height = shown.measure("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(height, HEIGHT_MAX)}
        shown.page.screenshot(path=path, full_page=True, clip=clip)


def draw_paper(started: Browser, name: str, path: Path) -> None:
    """Write the page as it is printed."""
    with view(started, page(name)) as shown:
        shown.page.pdf(path=path, format="A4", margin=dict.fromkeys(_SIDES, "12mm"))
    if shutil.which("pdftoppm"):
        stem = path.with_suffix("")
        subprocess.run(
            ["pdftoppm", "-r", str(SHEETS_DPI), "-l", str(SHEETS_MAX), "-png", path, stem],
            check=True,
        )


_SIDES = ("top", "right", "bottom", "left")

if __name__ == "__main__":
    raise SystemExit(main())
