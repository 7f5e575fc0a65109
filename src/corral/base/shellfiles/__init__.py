"""`AsyncFiles` by shell scripts, for sandboxes that have `/bin/sh` but no Python.

Nothing of ours is installed inside: fixed scripts for POSIX sh with coreutils or busybox are run as the code's user, so
what that user may not do is refused by the kernel. Content goes through standard input and output only.
"""
