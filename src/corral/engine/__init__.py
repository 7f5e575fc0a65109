"""The embedded engine: Linux namespaces, overlays, seccomp and cgroups, with nothing but the standard library.

It stands alone: it imports nothing of the rest of Corral and has its own few types and errors. Read `recipe.py` (what
is asked for), `plan.py` (what will be done), `perform.py` (doing it), `box.py` (the host side), `init.py` (the inside).
"""
