"""``python -m hybridrl`` is the ``hybridrl`` command."""

import sys

from hybridrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
