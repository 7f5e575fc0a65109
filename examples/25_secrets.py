"""A program inside uses a key without seeing it: its placeholder becomes the value on the way to the named host.

Needs `pip install 'corral[secrets]'`. To see a key of yours in use, give its variable, its host and a path:

    python examples/25_secrets.py OPENAI_API_KEY api.example.org /v1/models
"""

import os
import sys

from corral import Sandbox, Secret

os.environ.setdefault("EXAMPLE_KEY", "the value that no program sees")
name, host, path = sys.argv[1:4] if len(sys.argv) > 3 else ("EXAMPLE_KEY", "api.example.org", None)
key = Secret.from_env(name, hosts=[host])

with Sandbox(network=[host], secrets=[key]) as box:
    seen = box.exec(["printenv", name]).stdout.strip()
    print("inside:  ", seen.rpartition("-")[0], "and a random number")
    print("a value: ", os.environ[name] in box.exec("env; cat /proc/*/environ").stdout)
    if path is not None:
        print(box.exec(f'curl -sS -H "Authorization: Bearer ${name}" https://{host}{path}').output)

    # Another value for the same placeholder: programs that run need not be told.
    box.set_secrets([Secret(name, "rotated", hosts=[host])])
    print("the same:", box.exec(["printenv", name]).stdout.strip() == seen)

    # The values of this sandbox are in no text about it.
    print("told:    ", box.spec.secrets[0])
