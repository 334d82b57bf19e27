"""`python -m remuda` is the command line."""

import sys

try:
    from remuda.cli.main import main

    main()
except KeyboardInterrupt:  # while modules are imported
    print("stopped by Ctrl-C; there was nothing to save", file=sys.stderr)
    sys.exit(130)
