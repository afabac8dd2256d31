"""Files that survive a crash, and what a run is known by. Imports no other room.

``atomic``       a file is whole or not there;  ``checkpoint`` what a run needs to go on
``fingerprint``  digests of records, plans and platforms;  ``row_blocks`` records read block by block
``pytree``       a name for nested arrays, their length and size
``cache``        the user's cache folder;  ``compiled_programs`` programs kept in it
"""
