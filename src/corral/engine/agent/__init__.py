"""The file agent: a process inside the sandbox that acts on its files as the code's user.

It is forked from init (nothing of it is read from the sandbox's disk), has no capability, the code's seccomp filter,
and a uid that the code can't signal (as root). Paths are resolved inside the sandbox's own root, so that a link can't
lead out; what it hands to the host are open descriptors, which the host checks again.
"""
