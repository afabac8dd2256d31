"""Files that survive a crash, and what a run is known by. Imports no other room.

``files``        a file is whole or not there; regular files and their stamps; locks; the folder of a result, digests
``arrays``       arrays in files, sealed ones among them, whatever their headers claim
``checkpoint``   what a run needs to go on
``fingerprint``  digests of records, plans and platforms; records read block by block; refusal of a forked process
``pytree``       nested arrays, their length and size; a module's numbers and structure
``cache``        the user's cache folder;  ``compiled_programs`` programs kept in it
``blas``         one thread for linear algebra on the host
"""
