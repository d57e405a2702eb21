"""What fastload's fork server imports before it forks: this module, and so all that a worker process runs.

Nothing is begun here, for neither a thread nor a device would be in the workers.
"""

from . import worker_process as worker_process
