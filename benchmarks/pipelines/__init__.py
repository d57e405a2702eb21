"""Pipelines that people have, written as a user of each library writes them; torch's loader beside fastload's.

Nothing but the class of the loader differs between the sides. ``catalogue.py`` names the pipelines. One file a family
holds them: ``images.py``, ``annotated.py``, ``libraries.py``, ``text.py``, ``arrays.py``. A pipeline is a function
``name(source, loader_class, num_workers)`` that returns the loader.
"""
