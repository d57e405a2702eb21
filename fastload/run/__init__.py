"""How a script gets fastload's loader without being edited, and how commands run a script.

Loaders of a script's process are replaced (:mod:`.installation`, :mod:`.adapters`) or observed
(:mod:`.script_loaders`), with the arguments of ``FASTLOAD_LOADER`` (:mod:`.defaults`). :mod:`.targets` is what all
commands share. To adapt another library's loader, add a function to :mod:`.adapters`. Nothing is imported here: every
process below ``fastload run`` reads this file.
"""
