"""`python -m emberline_runtime`: one engine process."""

import sys

from emberline_runtime.cli import main, prepare_process

if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
