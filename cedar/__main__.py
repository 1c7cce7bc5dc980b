"""``python -m cedar``: the command line."""

import sys

from cedar.cli import main

sys.exit(main())
