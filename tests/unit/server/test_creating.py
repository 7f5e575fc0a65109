"""What the backend is asked for."""

from corral.server.creating import make_spec
from corral.server.settings import Defaults
from corral.server.store.rows import Sandbox
from corral.spec import NetworkPolicy


def test_limits_that_every_client_sends_are_not_insisted_on() -> None:
    """Else a server of an ordinary user, who can't limit processors, would make no sandbox at all."""
    row = Sandbox(
        id="one", organisation_id="o", name="n", user="daytona", env={}, labels={}, target="local", cpu=1, memory=2,
        disk=3, state="creating", desired_state="started", auto_stop=0, auto_archive=0, auto_delete=-1,
    )  # fmt: skip
    resources = make_spec(
        row, snapshot=None, organisation="team", defaults=Defaults(), network=NetworkPolicy()
    ).resources
    assert (resources.cpus, resources.memory, resources.disk) == (1, 2 << 30, 3 << 30)
    assert resources.asked == frozenset()
