"""(seed, epoch, sample) -> key -> random numbers of that sample.

Keys are made by :class:`.seeding.Keys`, words from a key by :mod:`.philox`, and :class:`.seeding.Seeder` seeds the
generators of Python, NumPy and torch with one. A key never depends on a worker, a rank or the number of either. To seed
the generators of another library, add it to :class:`.library_generators.LibraryGenerators`.
"""
