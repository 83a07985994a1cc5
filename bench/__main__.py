"""`python -m bench`: runs the benchmarks; today that is the router's (`python -m bench.router --help`)."""

import sys

from bench.router.run import main

if __name__ == "__main__":
    sys.exit(main())
