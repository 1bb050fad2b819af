"""Build the site: ``python -m docs.site`` in the root, with the extra ``docs``.

It writes ``docs/_build/html`` from recordings; nothing is measured. The pages need no network. A
warning of Sphinx is an error, and so is a link to a page, a heading or a file that is missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from docs.links import broken_links

HERE = Path(__file__).parent
SITE = HERE / "_build" / "html"


def main() -> int:
    """Build and check; return the exit code."""
    # Anew (-E): of pages that it does not read again, Sphinx drops what the search finds first.
    code = sphinx(["-E", "-b", "html", "-W", "--keep-going", "-q", str(HERE), str(SITE)])
    broken = sorted(set(broken_links(SITE)))
    for link in broken:
        print(f"leads nowhere: {link}", file=sys.stderr)  # noqa: T201
    print(SITE / "index.html")  # noqa: T201
    return code or bool(broken)


if __name__ == "__main__":
    sys.exit(main())
