import sys

from bench.router.run import main

if __name__ == "__main__":
    sys.exit(main())
