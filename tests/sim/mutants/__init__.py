"""Known bugs, planted one at a time, that the simulator must find.

The production code has no switches for this: a mutant replaces functions or classes for as long
as its context lasts.
"""
