"""`python -m remuda` is the command line."""

from remuda.cli import main

main()
