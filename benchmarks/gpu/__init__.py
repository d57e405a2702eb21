"""What a GPU gets of the data and how much of it the data takes: ``python -m benchmarks.gpu``.

``catalogue.py`` has the cases with their goals; ``all.sh`` builds, runs the tests that need a GPU and this command, and
prints the verdict. With ``--device cpu`` the same code runs at tiny sizes; its numbers say nothing of a GPU.
"""
