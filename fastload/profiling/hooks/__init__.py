"""What is put into a script's processes: hooks that write records. Each says what it hears, or that it is missing."""
