"""Makes `runs`, the builder of hand-written runs, importable for the tests of this folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
