"""Photograph every page of the built site into _build/screenshots: wide, narrow and dark."""

from __future__ import annotations

from typing import Literal

from browse import chromium, isolate, pages, serve
from build_book import BUILD, SITE_FOLDER

LOOKS: tuple[tuple[str, int, Literal["light", "dark"]], ...] = (
    ("wide", 1300, "light"),
    ("narrow", 375, "light"),
    ("dark", 1300, "dark"),
    ("narrow-dark", 375, "dark"),
)


def main() -> None:
    folder = BUILD / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    with serve(SITE_FOLDER) as address, chromium() as browser:
        for look, width, scheme in LOOKS:
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            isolate(context, address)
            tab = context.new_page()
            for page in pages(SITE_FOLDER):
                if page.startswith("_modules/"):
                    continue  # source code, all alike
                tab.goto(address + page, wait_until="load")
                tab.evaluate("window.MathJax?.startup?.promise")
                name = page.removesuffix(".html").replace("/", "-")
                tab.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
            context.close()
    print(f"Screenshots are in {folder}")


if __name__ == "__main__":
    main()
