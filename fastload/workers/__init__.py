"""Workers: WorkItem -> rows of a batch. fetch.py is the work; inline, threads and processes are who does it."""
