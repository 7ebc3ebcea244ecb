"""`python -m emberline_runtime`: one engine process."""

import sys

from emberline_runtime.cli import main

sys.exit(main())
