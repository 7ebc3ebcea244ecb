"""`python -m emberline_gateway`."""

from emberline_gateway.main import main

if __name__ == "__main__":
    main()
