from corral.base.docstrings import Documented


class Promise:
    @property
    def name(self) -> str:
        """What it is called."""
        raise NotImplementedError

    def run(self) -> None:
        """Run it to its end."""

    labels = None  # None has a docstring of its own in newer versions of Python


def test_methods_get_the_docstrings_of_their_promises_and_plain_values_are_left_alone() -> None:
    class Kept(Documented, promises=(Promise,)):
        name = "kept"
        labels = "a"

        def run(self) -> None:
            """See `Promise`."""

        def other(self) -> None:
            """See `Promise`: there is none."""

    assert Kept.run.__doc__ == "Run it to its end."
    assert (Kept.name, Kept.labels, Kept.other.__doc__) == ("kept", "a", "See `Promise`: there is none.")
