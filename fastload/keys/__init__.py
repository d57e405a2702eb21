"""(seed, epoch, sample) -> key -> random numbers of that sample.

In: a loader's seed, an epoch and a sample's id. Out: keys (:class:`.seeding.Keys`), words made from a key
(:mod:`.philox`), and the generators of Python, NumPy and torch seeded with one (:class:`.seeding.Seeder`). A key never
depends on a worker, a rank or the number of either. To seed the generators of another library, add it to
:class:`.library_generators.LibraryGenerators`.
"""
