"""Test ground for what has to do with networks: a namespace from which nothing leads out, with stand-ins for the world.

    python -m corral.testing.ground PROGRAM [ARGUMENT…]

starts the program in a network namespace of its own, which looks like a machine on the internet: it has loopback, one
interface, a route and a resolver. Everything behind that interface is a second namespace, "the world", where the
program can listen on any address: public, private, metadata. Host names come from a hosts file of its own and from a
name server that it scripts. Root and ordinary users can do this; no other program is needed.

In the program, `Ground()` finds all this, after it has made sure that there is no other way out.
"""

from __future__ import annotations

from corral.testing.ground.enter import GroundError
from corral.testing.ground.names import Answer, NameServer
from corral.testing.ground.world import OWN_ADDRESS, OWN_ADDRESS_6, Ground

__all__ = ["OWN_ADDRESS", "OWN_ADDRESS_6", "Answer", "Ground", "GroundError", "NameServer"]
