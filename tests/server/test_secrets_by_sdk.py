"""Stored secrets in use: the official SDK, `corral serve`, and programs whose requests get the value on the way."""

import sys
from pathlib import Path

import pytest

from support import ground
from support.certificates import make_certificates

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only"),
]

CANARY = "canary-value-of-a-stored-secret"
PROGRAM = """
import asyncio, pathlib, urllib.request
from daytona import CreateSandboxFromSnapshotParams, CreateSecretParams, UpdateSecretParams
from support.serving import ServedProcess, make_client
folder = pathlib.Path(os.environ["CORRAL_DATA_DIR"])
folder.mkdir()
(folder / "trusted.pem").write_text(AUTHORITY)
api = serve(web, "93.184.215.14", 443, name="api.example.org", tls=TLS)
ASK = 'curl -sS -m 10 -H "X-Api-Key: $API_KEY" https://api.example.org/'
def seen():
    got = [each["headers"].get("x-api-key") for each in api.requests]
    api.requests.clear()
    return got
server = ServedProcess(folder / "data", arguments=("--network", "open"),
    env={"SSL_CERT_FILE": str(folder / "trusted.pem")})
server.start()
client = make_client(server)
try:
    key = client.secret.create(CreateSecretParams(name="example", value=CANARY, hosts=["api.example.org"]))
    box = client.create(CreateSandboxFromSnapshotParams(secrets={"API_KEY": "example"}))
    box.process.exec(ASK)
    tell(created=seen(), shown=box.process.exec("printenv API_KEY").result.strip() == key.placeholder)
    client.secret.update(key.id, UpdateSecretParams(value="rotated"))
    box.process.exec(ASK)
    tell(rotated=seen())
    server.kill()
    server.start()
    client = make_client(server)
    box = client.get(box.id)
    box.process.exec(ASK)
    tell(after_a_crash=seen())
    client.secret.update(key.id, UpdateSecretParams(value="again"))
    box.process.exec(ASK)
    tell(rotated_after_it=seen())
    box.stop()
    box.start()
    box.process.exec(ASK)
    tell(started_again=seen())
    box.update_secrets({})
    box.process.exec(ASK)
    tell(taken_away=seen())
    late = client.create()
    late.update_secrets({"API_KEY": "example"})
    late.process.exec(ASK)
    tell(given_later=seen())
    metrics = urllib.request.urlopen(server.url.removesuffix("/api") + "/metrics").read().decode()
    texts = server.log + "".join(server.lines) + metrics + repr(client.get(box.id)) + repr(key)
    tell(told=[word for word in (CANARY, "rotated") if word in texts])
    stored = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    small = [path for path in stored if path.stat().st_size < 64 << 20]
    tell(at_rest=[str(path) for path in small if CANARY.encode() in path.read_bytes()])
finally:
    server.stop()
    asyncio.run(server.end_sandboxes())
"""


def test_value_of_a_stored_secret_reaches_its_host_and_nothing_else(tmp_path: Path) -> None:
    """At creation, rotated, after a crash of the server, after a stop, and given to a sandbox that runs."""
    certificates = make_certificates(tmp_path, "api.example.org")
    authority, key = certificates.authority.read_text(), certificates.texts
    answer = ground.run(PROGRAM, AUTHORITY=authority, TLS=key, CANARY=CANARY)
    assert answer.pop("taken_away") in ([""], [None])  # a variable that is not set
    assert answer == {
        "created": [CANARY], "shown": True, "rotated": ["rotated"], "after_a_crash": ["rotated"],
        "rotated_after_it": ["again"], "started_again": ["again"], "given_later": ["again"], "told": [], "at_rest": [],
    }  # fmt: skip
