"""The folder that ``fastload run`` puts first on PYTHONPATH.

Every Python process started below ``fastload run`` executes ``sitecustomize.py`` of this folder before anything
else. The modules here import neither torch nor fastload at their top level, so that a process which uses neither
pays for a few small files only.
"""
