"""How a gate is started: by whoever holds the sandbox, as a fresh process that has nothing of its memory."""

from __future__ import annotations

from typing import Final

BOOT: Final = (
    "import sys,types,json;p=json.loads(sys.stdin.readline());m=types.ModuleType('corral');m.__path__=[p['package']];"
    "sys.modules['corral']=m;from corral.network.gate import main;main(p)"
)
"""The program of `python -I -S -c BOOT`. An empty module replaces the package, so that nothing else of it is imported.

It reads one line of JSON from standard input:

- `package`: the folder of the package `corral`.
- `dns`: the descriptor of a UDP socket that is bound in the sandbox.
- `tcp4`, `tcp6`: descriptors of listeners there; `tcp6` may be null.
- `control`: a SEQPACKET socket to the holder. At its end of file the gate ends.
- `settings`: a sealed memory file with `GateSettings`.
- `denials`: the file of `network.denials`, open for reading and writing.
- `sandbox`: a pidfd of the sandbox's init. When it has ended, the gate ends.
- `uid`, `gid`: who the gate becomes, if root starts it; else null.

Requests on the control socket are one JSON object each: `{"op": "settings"}` with the descriptor of new settings,
`{"op": "usage"}`, and `{"op": "judge"}`, which is answered with `judged` when the connections that were there have been
judged, as far as that needs no lookup. The answer is an object with `ok`; if that is false, `error` says why. The gate
first says `{"ok": true, "ready": true}`.
"""
