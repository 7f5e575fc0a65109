"""What may be asked for as a package: a name, extras, versions, markers. Nothing that leads pip anywhere else."""

import subprocess
import sys
from typing import Any, cast

import pytest

from corral.adapters.pydantic_ai.runtime import RuntimeConfig
from corral.backends.embedded.keepers import spec_from
from corral.errors import SpecError
from corral.forge.candidate import Candidate
from corral.image import Image
from corral.requirement import MAX_PACKAGES, check_packages
from corral.spec import Spec

BAD = [
    "",
    " ",
    "evil @ file:///x",
    "evil@file:///x",
    "evil[a] @ file:///x",
    "evil @ ./x",
    "evil @ https://example.org/evil-1.0-py3-none-any.whl",
    "evil @ git+https://example.org/evil",
    "evil @ file:///x ; python_version > '3'",
    "git+https://example.org/evil",
    "https://example.org/evil-1.0-py3-none-any.whl",
    "file:///x",
    "-r /etc/passwd",
    "-e .",
    "-",
    "--index-url=https://example.org",
    "--index-url https://example.org",
    "numpy --index-url=https://example.org",
    "numpy -r x",
    "numpy --config-settings=a=b",
    ".",
    "./x",
    "../x",
    "/x/y",
    "x/y",
    "C:\\x",
    "~/x",
    "x.whl",
    "x.zip",
    "x.tar.gz",
    "evil===/x/y.whl",
    "evil===1.zip",
    "evil==1.0+x.zip",
    "evil==1.0+x.WHL",
    "evil<2,==1.0+x.tar.gz",
    "numpy\n--x",
    "numpy\r--x",
    "numpy\0",
    "numpy\t>=2",
    "numpy\u2028--x",
    "num\u200bpy",
    "ｎumpy",
    "numpy\u00a0>=2",
    "numpy>=２",
    "númpy",
    "numpy pandas",
    "numpy,pandas",
    "numpy>=",
    "numpy>=x",
    "numpy;",
    "numpy;nothing=='x'",
    "numpy #x",
    "${HOME}",
    "n" * 5000,
    "numpy;" + "(" * 450 + "python_version>'3'" + ")" * 450,
]  # fmt: skip

GOOD = [
    ("numpy", "numpy"),
    (" numpy ", "numpy"),
    ("numpy>=2", "numpy>=2"),
    ("numpy >= 2 , < 3", "numpy<3,>=2"),
    ("numpy (>=2)", "numpy>=2"),
    ("numpy==2.*", "numpy==2.*"),
    ("numpy~=2.1", "numpy~=2.1"),
    ("numpy!=2.0rc1", "numpy!=2.0rc1"),
    ("torch==2.1.0+cpu", "torch==2.1.0+cpu"),
    ("x==1!2.0", "x==1!2.0"),
    ("PyYAML", "pyyaml"),
    ("zope.interface", "zope-interface"),
    ("typing_extensions", "typing-extensions"),
    ("requests[socks]>=2", "requests[socks]>=2"),
    ("requests[Socks, use_chardet]", "requests[socks,use-chardet]"),
    ("numpy ; python_version<'3'", 'numpy; python_version < "3"'),
]


def describe(value: object) -> str:
    return ascii(value)[:40]


@pytest.mark.parametrize("package", [*BAD, 1, None, b"numpy", ["numpy"]], ids=describe)
def test_what_is_no_name_is_refused_everywhere(package: Any) -> None:
    with pytest.raises(SpecError, match="is not a package"):
        check_packages([package])
    with pytest.raises(SpecError):
        Spec(packages=("numpy", package))
    with pytest.raises(SpecError):
        Candidate.command(["true"], packages=[package])
    with pytest.raises(SpecError):
        RuntimeConfig(name="x", packages=[package]).make_spec()


@pytest.mark.parametrize(("package", "canonical"), GOOD, ids=describe)
def test_name_is_given_on_in_its_canonical_form(package: str, canonical: str) -> None:
    assert check_packages([package]) == (canonical,)
    assert check_packages([canonical]) == (canonical,)
    assert Spec(packages=(package,)).packages == (canonical,)
    assert Candidate.command(["true"], packages=[package]).packages == (canonical,)


@pytest.mark.parametrize("packages", ["numpy", b"numpy", 1, None, {"numpy": "2"}], ids=describe)
def test_what_is_no_list_is_refused(packages: Any) -> None:
    with pytest.raises(SpecError, match="must be a list"):
        check_packages(packages)
    with pytest.raises(SpecError):
        Spec(packages=packages)
    with pytest.raises(SpecError):
        Candidate.command(["true"], packages=packages)
    with pytest.raises(SpecError):
        RuntimeConfig(name="x", packages=packages or 0).make_spec()


def test_number_of_packages_has_a_limit() -> None:
    assert len(check_packages(f"a{number}" for number in range(MAX_PACKAGES))) == MAX_PACKAGES
    with pytest.raises(SpecError, match=str(MAX_PACKAGES)):
        check_packages(f"a{number}" for number in range(10**12))


def test_message_about_a_long_text_is_short() -> None:
    with pytest.raises(SpecError) as caught:
        check_packages(["a" * 10**6])
    assert len(str(caught.value)) < 1000


def test_parser_is_loaded_only_for_packages() -> None:
    script = (
        "import sys; from corral.spec import Spec; Spec(); print('packaging' in sys.modules);"
        "Spec(packages=('numpy',)); print('packaging' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"


@pytest.mark.parametrize("package", ["--index-url=https://example.org", "-r x", "", "a\nb", "a\0", "a\x1b[2J", 1])
@pytest.mark.parametrize("manager", ["pip", "apt", "npm", "cargo"])
def test_options_do_not_reach_an_installer_in_an_image(package: Any, manager: Any) -> None:
    with pytest.raises(SpecError, match="is not a package"):
        RuntimeConfig(name="x", base_image="debian:12", packages=[package], package_manager=manager).make_spec()


def test_image_keeps_addresses_because_they_are_fetched_and_built_inside_it() -> None:
    built = Image.base("debian:12").pip_install("mine @ git+https://example.org/mine")
    assert "'mine @ git+https://example.org/mine'" in built.dockerfile
    scoped = RuntimeConfig(name="x", base_image="node:20", packages=["@scope/x"], package_manager="npm")
    assert "@scope/x" in scoped.make_spec().image.dockerfile  # type: ignore[union-attr]


def test_sandbox_of_an_earlier_version_that_took_an_address_can_be_read() -> None:
    spec = {"packages": ["numpy>=2", "x @ file:///x"], "resources": {}}
    assert spec_from({"spec": spec}).packages == ("numpy>=2",)


def test_packages_may_be_any_iterable_and_none_of_them_is_lost() -> None:
    assert Spec(packages=cast("Any", iter(["numpy", "rich"]))).packages == ("numpy", "rich")
