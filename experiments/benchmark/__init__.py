"""Private regression on public tables: every method of the library, and its rivals.

``tables``   the list of tables with what is public about their columns; it was committed before the first run
``problem``  a table as every method gets it;  ``methods`` the methods
``run``      one method on one table;  ``memory`` what it takes
``ranks``, ``summary``, ``losses``, ``picture``  what the rows show
"""
