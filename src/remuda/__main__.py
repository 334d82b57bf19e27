"""`python -m remuda` is the command line."""

from remuda.cli.main import main

main()
