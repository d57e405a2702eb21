"""How a script gets fastload's loader without being edited, and how commands run a script.

In: a command line, a script, a loader of torch's. Out: the script's process with loaders replaced
(:mod:`.installation`, :mod:`.adapters`) or observed (:mod:`.script_loaders`), with the arguments of ``FASTLOAD_LOADER``
(:mod:`.defaults`). :mod:`.targets` is what all commands share. To adapt another library's loader, add a function to
:mod:`.adapters`. Nothing is imported here: every process below ``fastload run`` reads this file.
"""
