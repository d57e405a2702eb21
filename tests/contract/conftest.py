"""Makes the shared modules of the contract suite importable, by its tests and by spawned workers."""

import sys
from pathlib import Path

# A spawned or forkserver worker is given this process's sys.path, so one entry serves both, whatever import mode
# pytest runs in.
_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)
