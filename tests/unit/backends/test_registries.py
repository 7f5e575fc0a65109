"""What `packages` permits. pip is real, with settings of the test; npm, apt and uv are programs that answer alike."""

import base64
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from corral.backends.embedded.registries import Registries, asking, find_registries, finding
from corral.backends.embedded.registries.asking import AptSites, NpmRegistries, PythonIndexes
from corral.backends.embedded.registries.combining import NPM_SETTINGS_AT, combine
from corral.backends.embedded.registries.folders import FolderError, show_folder
from corral.network.settings import Alias, GateSettings

MISSING = "not installed"
NO_UV, NO_NPM, NO_APT = PythonIndexes(problem=MISSING), NpmRegistries(problem=MISSING), AptSites(problem=MISSING)


def for_pip(index: str | None, **more: object) -> Registries:
    return combine(PythonIndexes(index, **more), NO_UV, NO_NPM, NO_APT)  # type: ignore[arg-type]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No setting of this machine: an empty home, no variables, and a folder for programs on PATH."""
    for name in [name for name in os.environ if name.lower().startswith(("pip_", "uv_", "npm_"))]:
        monkeypatch.delenv(name)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setattr(finding, "_CACHE", finding._Cache())
    return programs


def write_program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_default_index_and_its_file_host_are_asked_of_pip(clean: Path) -> None:
    ask = "from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)"
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd="/").stdout
    answer = asking.ask_pip()
    found = combine(answer, NO_UV, NO_NPM, NO_APT)
    assert set(found.rules) == {f"{host}:443" for host in said.split()}
    assert not {"PIP_INDEX_URL", "PIP_NO_INDEX"} & found.env.keys(), "pip inside has the same default"


def test_settings_of_pip_take_the_place_of_its_default(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://user:s%40cret@pip.example.org/simple\nextra-index-url = http://more.example.org:81/x\n"
        "trusted-host = more.example.org\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = combine(asking.ask_pip(), NO_UV, NO_NPM, NO_APT)
    assert found.rules == ("pip.example.org:443", "more.example.org:81")
    assert found.env["PIP_INDEX_URL"] == "https://pip.example.org/simple"
    assert found.env["PIP_EXTRA_INDEX_URL"] == "http://more.example.org:81/x"
    assert found.env["PIP_TRUSTED_HOST"] == "more.example.org"
    (login,) = found.credentials
    assert (login.host, login.header) == ("pip.example.org:443", "Authorization")
    assert base64.b64decode(login.value.removeprefix("Basic ")) == b"user:s@cret"


def test_login_is_shown_nowhere() -> None:
    found = combine(
        PythonIndexes("https://user:s3cret@pip.example.org/simple"),
        NO_UV,
        NpmRegistries("https://npm.example.org/", logins=(("npm.example.org/", "Bearer s3cret"),)),
        AptSites(("https://user:s3cret@apt.example.org/debian",)),
    )
    assert {each.host for each in found.credentials} == {f"{tool}.example.org:443" for tool in ("pip", "npm", "apt")}
    assert "s3cret" not in repr(found)
    GateSettings(mode="packages", rules=found.rules, credentials=found.credentials, aliases=found.aliases)  # accepted
    assert "s3cret" not in repr(found.env) + repr(found.sources) + repr(found.files)


def test_registry_on_loopback_has_a_name_of_its_own_inside() -> None:
    found = for_pip("http://localhost:3141/root/simple", extra=("http://127.0.0.1:8080/x", "http://[::1]:8081/y"))
    first, second, third = (f"{name}.registry.internal" for name in ("localhost-3141", "127-0-0-1-8080", "1-8081"))
    assert found.aliases == (
        Alias(first, 3141, "localhost", 3141), Alias(second, 8080, "127.0.0.1", 8080), Alias(third, 8081, "::1", 8081),
    )  # fmt: skip
    assert found.rules == (f"{first}:3141", f"{second}:8080", f"{third}:8081")
    assert found.env["PIP_INDEX_URL"] == f"http://{first}:3141/root/simple"
    assert found.env["PIP_TRUSTED_HOST"].split() == [f"{first}:3141", f"{second}:8080", f"{third}:8081"]
    assert not any("localhost:" in value or "127.0.0.1" in value for value in found.env.values())


def test_registry_may_have_a_private_address() -> None:
    """The gate connects a name to a public address only, but where the operator's own tools go, it goes too."""
    found = for_pip("https://pip.example.org/simple", extra=("http://10.1.2.3/simple", "http://u:p@10.1.2.4:81/x"))
    name = "10-1-2-4-81.registry.internal"
    assert found.rules == ("pip.example.org:443", "10.1.2.3:80", f"{name}:81")
    assert found.aliases == (Alias("pip.example.org", 443, "pip.example.org", 443), Alias(name, 81, "10.1.2.4", 81))
    assert [each.host for each in found.credentials] == [f"{name}:81"], "a login is for a name"


def test_uv_inside_follows_pip_unless_it_has_settings_of_its_own() -> None:
    pip = PythonIndexes("https://pip.example.org/simple", extra=("https://more.example.org/simple",))
    default = PythonIndexes("https://default.example.org/simple", is_default=True)
    found = combine(pip, default, NO_NPM, NO_APT)
    assert found.rules == ("pip.example.org:443", "more.example.org:443")
    assert found.env["UV_DEFAULT_INDEX"] == "https://pip.example.org/simple"
    own = combine(pip, PythonIndexes("https://uv.example.org/simple"), NO_NPM, NO_APT)
    assert own.env["UV_DEFAULT_INDEX"] == "https://uv.example.org/simple"
    assert "uv.example.org:443" in own.rules


def test_pip_inside_follows_uv_if_only_that_has_settings() -> None:
    """packages= is resolved by pip: names of a company's own index are not asked for at the public one."""
    default = PythonIndexes("https://default.example.org/simple", is_default=True, file_host="files.example.org")
    found = combine(default, PythonIndexes("https://me:s3cret@uv.example.org/simple"), NO_NPM, NO_APT)
    assert found.rules == ("uv.example.org:443",)
    assert found.env["PIP_INDEX_URL"] == found.env["UV_DEFAULT_INDEX"] == "https://uv.example.org/simple"
    assert combine(NO_UV, PythonIndexes("https://uv.example.org/simple"), NO_NPM, NO_APT).env["PIP_INDEX_URL"]


def test_without_an_index_none_is_used_inside_either(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = for_pip(None, links=(str(tmp_path),))
    assert found.rules == ()
    assert found.env["PIP_NO_INDEX"] == "1"
    assert found.env["PIP_FIND_LINKS"].startswith("file:///opt/corral/indexes/0/")
    assert [each.source for each in found.folders] == [str(tmp_path)]


def test_scopes_of_npm_go_into_a_settings_file() -> None:
    found = combine(
        NO_UV, NO_UV,
        NpmRegistries("http://127.0.0.1:4873/", (("@ours", "https://npm.example.org/team/"),),
                      (("npm.example.org/team/", "Bearer abc"), ("npm.example.org/other/", "Bearer no"))), NO_APT,
    )  # fmt: skip
    assert found.env["npm_config_registry"] == "http://127-0-0-1-4873.registry.internal:4873/"
    assert found.env["npm_config_replace_registry_host"] == "always"
    assert found.files == {NPM_SETTINGS_AT: "@ours:registry=https://npm.example.org/team/\n"}
    assert [each.value for each in found.credentials] == ["Bearer abc"]


@pytest.mark.parametrize("url", ["ftp://a.example.org/", "https://", "https://a b/", "cdrom:[x]/", "https://h:99999/x"])
def test_address_that_is_no_registry_permits_nothing(url: str) -> None:
    assert for_pip(url).rules == ()
    assert combine(NO_UV, NO_UV, NO_NPM, AptSites((url,))).rules == ()


def test_npm_and_its_logins_are_asked(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "from-a-variable")
    settings = tmp_path / "npmrc"
    settings.write_text(
        f"//a.example.org/:_authToken=${{TOKEN}}\n//b.example.org/:username=u\n"
        f"//b.example.org/:_password={base64.b64encode(b'p').decode()}\n; no = line\n"
    )
    answer = (
        f'{{"registry": "https://a.example.org/", "@b:registry": "https://b.example.org/", "userconfig": "{settings}"}}'
    )
    write_program(clean, "npm", f"echo '{answer}'")
    npm = asking.ask_npm()
    assert (npm.registry, npm.scoped) == ("https://a.example.org/", (("@b", "https://b.example.org/"),))
    assert dict(npm.logins) == {"a.example.org/": "Bearer from-a-variable", "b.example.org/": "Basic dTpw"}


def test_apt_and_uv_are_asked(clean: Path, tmp_path: Path) -> None:
    write_program(clean, "apt-get", "printf 'https://apt.example.org/debian\\nhttps://apt.example.org/debian\\n'")
    assert asking.ask_apt().sites == ("https://apt.example.org/debian",)
    write_program(
        clean, "uv", "echo 'The URL of the index (by'; echo '  default: <https://uv.example.org/simple>) [env: X]'"
    )
    assert asking.ask_uv() == PythonIndexes(
        "https://uv.example.org/simple", is_default=True, files=asking.ask_uv().files
    )
    config = tmp_path / "home/.config/uv/uv.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        '[[index]]\nurl = "https://one.example.org/"\ndefault = true\n[pip]\nextra-index-url = ["https://two.example.org/"]\n'
    )
    found = asking.ask_uv()
    assert (found.index, found.extra) == ("https://one.example.org/", ("https://two.example.org/",))


def test_logins_that_uv_has_in_variables_are_read(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(clean, "uv", "true")
    monkeypatch.setenv("UV_INDEX", "our-own=https://one.example.org/simple https://two.example.org/simple")
    monkeypatch.setenv("UV_INDEX_OUR_OWN_USERNAME", "me")
    monkeypatch.setenv("UV_INDEX_OUR_OWN_PASSWORD", "s@cret")
    monkeypatch.setenv("UV_INDEX_THEIRS_PASSWORD", "token")
    config = tmp_path / "home/.config/uv/uv.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[[index]]\nname = "theirs"\nurl = "https://three.example.org/"\ndefault = true\n')
    found = asking.ask_uv()
    assert found.index == "https://:token@three.example.org/"
    assert found.extra == ("https://me:s%40cret@one.example.org/simple", "https://two.example.org/simple")
    registries = combine(NO_UV, found, NO_NPM, NO_APT)
    assert "cret" not in repr(registries.env) + repr(registries.sources)
    assert {each.host for each in registries.credentials} == {"one.example.org:443", "three.example.org:443"}


def test_edited_source_of_apt_is_noticed(clean: Path, tmp_path: Path) -> None:
    sources = tmp_path / "sources.list.d"
    sources.mkdir()
    (sources / "a.sources").write_text("one")
    before = {path: finding._stamp(path) for path in asking._apt_files(tmp_path)}
    with (sources / "a.sources").open("a") as file:
        file.write("two")
    assert before != {path: finding._stamp(path) for path in before}


@pytest.mark.parametrize("text", ["exit 3", "echo no JSON", "sleep 60", "printf '\\377'"])
def test_tool_that_fails_or_hangs_is_a_problem_and_no_error(
    clean: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(asking, "_SECONDS", 0.3)
    write_program(clean, "npm", text)
    assert asking.ask_npm().problem.startswith("npm ")
    assert any(problem.startswith("npm: npm ") for problem in combine(NO_UV, NO_UV, asking.ask_npm(), NO_APT).problems)


def test_login_in_the_message_of_a_tool_is_left_out(clean: Path) -> None:
    write_program(clean, "apt-get", "echo 'E: https://user:s3cret@apt.example.org/ is broken' >&2; exit 100")
    assert asking.ask_apt().problem == "apt-get failed: E: https://apt.example.org/ is broken"


def test_asked_once_until_a_setting_changes(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "ask_pip", lambda: NO_UV)
    write_program(clean, "apt-get", "exit 0")
    settings = tmp_path / "npmrc"
    count = tmp_path / "count"
    answer = f'{{"registry": "https://a.example.org/", "userconfig": "{settings}"}}'
    write_program(clean, "npm", f"echo x >> '{count}'; echo '{answer}'")
    asked = [threading.Thread(target=find_registries) for _ in range(4)]
    for each in asked:
        each.start()
    for each in asked:
        each.join()
    assert find_registries() is find_registries()
    assert count.read_text() == "x\n"
    settings.write_text("registry=https://b.example.org/\n")
    find_registries()
    assert count.read_text() == "x\nx\n"
    monkeypatch.setenv("npm_config_registry", "https://c.example.org/")
    find_registries()
    assert count.read_text() == "x\nx\nx\n"


def write_page(path: Path, *links: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'<a href="{link}">x</a>\n' for link in links))


def test_folders_that_an_index_links_to_are_shown_beside_it(tmp_path: Path) -> None:
    index = tmp_path / "mirror/simple"
    write_page(index / "index.html", *(f"{number}/" for number in range(500)))
    write_page(index / "one/index.html", "../../files/ab/one-1.0-py3-none-any.whl#sha256=0")
    write_page(index / "two/index.html", "../../files/cd/two-1.0-py3-none-any.whl", "https://example.org/elsewhere.whl")
    for name in ("files/ab", "files/cd", "private"):
        (tmp_path / "mirror" / name).mkdir(parents=True)
    at, folders = show_folder(index, 7)
    assert at == "/opt/corral/indexes/7/simple"
    shown = {each.target: each.source for each in folders}
    assert shown == {
        "/opt/corral/indexes/7/simple": str(index), "/opt/corral/indexes/7/files": str(tmp_path / "mirror/files"),
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/etc", "/no-such-folder/anywhere"])
def test_folder_that_holds_more_than_packages_is_not_shown(path: str) -> None:
    with pytest.raises(FolderError):
        show_folder(Path(path), 0)
    assert "not there inside" in for_pip(None, links=(path,)).sources[0].note


@pytest.mark.needs_root
def test_folder_that_sandboxes_could_not_read_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert for_pip(None, links=(str(tmp_path),)).sources[0].note == (
        f"not there inside: sandboxes can't read it: chmod o+rx {tmp_path}"
    )


def test_home_of_the_user_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "people/me"))
    (tmp_path / "people/me").mkdir(parents=True)
    with pytest.raises(FolderError, match="more than packages"):
        show_folder(tmp_path / "people", 0)
    write_page(tmp_path / "people/me/index/a/index.html", "../../secret.whl")
    with pytest.raises(FolderError, match="more than packages"):
        show_folder(tmp_path / "people/me/index", 0)
