"""fastload beside other loaders, each as its own users write it, all in one run: ``python -m benchmarks.peers``.

``catalogue.py`` has the cases and what fastload has to reach; ``loaders/`` the sides, one file a library. A peer is no
dependency of fastload: ``install.py`` makes an environment for each, and without it a side has a row that says so.
"""
