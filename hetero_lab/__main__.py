"""``python -m hetero_lab`` is ``hetero-lab``."""

import sys

from hetero_lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
