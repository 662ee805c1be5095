import sys

from legroom.cli import main

sys.exit(main())
