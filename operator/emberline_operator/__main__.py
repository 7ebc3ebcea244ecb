"""`python -m emberline_operator`."""

from emberline_operator.main import main

if __name__ == "__main__":
    main()
