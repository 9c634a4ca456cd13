"""`python -m onepolicy`, for `torchrun -m onepolicy score ...`."""

from onepolicy.cli import main

if __name__ == "__main__":
    main()
