"""The guards share the generators and the reading of the source with docs/."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))  # for package_structure.py and the generators
