web, code, books = range(1000), range(500), range(100)
