"""Files that survive a crash, and what a run is known by. Imports no other room.

``atomic``          a file is whole or not there;  ``lock`` one process at a time has it
``files``           regular files that somebody named are read;  ``stamps`` refuse one that changes meanwhile
``arrays``          arrays in files, sealed ones among them, whatever their headers claim
``run_folder``      the folder that a run writes;  ``released_files`` its names and digests;  ``surroundings`` of a path
``checkpoint``      what a run needs to go on;  ``commit`` how far it has got
``fingerprint``     digests of records, plans and platforms;  ``fork`` refuses a forked process
``record_blocks``   records read block by block
``pytree``          nested arrays, their length and size;  ``leaves`` as plain arrays and text
``structure``       a module's numbers and structure;  ``completed`` an object with the defaults of a class
``cache``           the user's cache folder;  ``compiled_programs`` programs kept in it;  ``versions`` of packages
``blas``            one thread for linear algebra on the host
"""
