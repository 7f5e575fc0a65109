"""Credentials for one call of git, where everything inside the sandbox may lie about where they are sent.

Three things keep them where the caller wants them:

1. They are for a host that the caller has named, in a call of the API: scheme, host and port. What the repository says
   its remote is has to agree. Git asks our helper for that host alone, so no rewritten URL and no redirect gets them.
2. Settings from inside that would lead elsewhere or run programs are overruled for the call: those of the home and the
   system are not read, and over those of the repository stand ours (proxies, certificates, hooks, fsmonitor).
3. The secret comes by a pipe that only the helper reads. It is in no environment, no argument list and no file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from corral.server.faults import Fault, bad_request
from corral.server.living import Handle

_MOST_HOSTS = 64
_PORTS = {"http": 80, "https": 443}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep the certificates that they trust. Always set, because a repository can name others."""

SCRIPT = 'exec 9<&0 </dev/null; exec git "$@"'
"""The secret is on standard input, where git's own children could read it: put it where only the helper looks."""
# Shell built-ins only: a program named `cat` may be the sandbox's own. A second reader finds the pipe empty.
_HELPER = '!f() { if [ "$1" = get ]; then while IFS= read -r line <&9; do printf "%s\\n" "$line"; done; fi; }; f'


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A name and a secret."""

    username: str
    password: str

    def spell(self) -> str:
        """In the format of git's credential helpers."""
        return f"username={self.username}\npassword={self.password}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Credentials for one URL, whose host the caller has named."""

    credentials: Credentials
    url: str
    remote: str | None = None
    """The name of the remote, where the URL is that of one."""


def credentials(username: str | None, password: str | None) -> Credentials | None:
    """The credentials of a request; None without any. Raises: Fault, 400, for characters that git can't read."""
    if not username and not password:
        return None
    for value in (username or "", password or ""):
        if set(value) & {"\n", "\r", "\0"}:
            raise bad_request("username and password can't contain line breaks or NUL characters")
    return Credentials(username=username or "", password=password or "")


def credentials_of(url: str) -> Credentials | None:
    """The credentials in a URL; None without any."""
    parts = _split(url)
    if parts is None or not parts.password:
        return None
    return credentials(unquote(parts.username or ""), unquote(parts.password))


def _split(url: str) -> SplitResult | None:
    """The parts of a URL that takes a login, or None."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in _PORTS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts if known and not set(url) & set("\n\r\0\t \\") else None


def find_origin(url: str) -> str:
    """Scheme, host and port of a URL. Raises: Fault, 400, for one that takes no credentials."""
    parts = _split(url)
    if parts is None:
        raise bad_request("username and password can only be used with http and https URLs")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, _PORTS[parts.scheme]) else "")


def name_host(handle: Handle, url: str) -> None:
    """Allow credentials to be sent to the host of a URL, which the caller has named. Other URLs are ignored."""
    try:
        origin = find_origin(url)
    except Fault:
        return
    hosts = [*(known for known in handle.row.git_hosts if known != origin), origin][-_MOST_HOSTS:]
    if hosts != handle.row.git_hosts:
        handle.row.git_hosts = hosts
        handle.sandbox.save()


def check_named(handle: Handle, url: str) -> None:
    """Raises: Fault, 400, for a URL whose host no caller has named: a program in the sandbox may have set it."""
    origin = find_origin(url)
    if origin not in handle.row.git_hosts:
        raise bad_request(
            f"the credentials were not used: this remote points to {origin}, which no API call has named for this "
            "sandbox; clone or add the remote through the API, or give its URL as the remote"
        )


def check_unchanged(urls: Sequence[str], rewrites: Sequence[str]) -> None:
    """Raises: Fault, 400, where a setting of the repository (`url.….insteadOf`) makes another URL of one of these."""
    for url in urls:
        if any(prefix and url.startswith(prefix) for prefix in rewrites):
            raise bad_request(
                "the credentials were not used: a setting url.*.insteadOf or url.*.pushInsteadOf of the repository "
                "rewrites the URL of this remote; remove it, or give the URL itself as the remote"
            )


def seal_reading(env: Mapping[str, str]) -> dict[str, str]:
    """Variables without the settings of the home and of the system.

    The system's programs come first: the home is on PATH, and a `git` there may be the sandbox's own.
    """
    return {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "PATH": f"{_SYSTEM_PATH}:{env['PATH']}" if env.get("PATH") else _SYSTEM_PATH,
    }


def seal_settings(login: Login, *, proxy: str, insecure: bool = False) -> list[tuple[str, str]]:
    """Settings that override those of the repository: git uses the last one, and ours come last."""
    found = [
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("core.alternateRefsCommand", ":"),
        ("fetch.recurseSubmodules", "false"),
        ("push.recurseSubmodules", "no"),
        ("submodule.recurse", "false"),
        ("push.gpgSign", "false"),
        ("fetch.writeCommitGraph", "false"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        # An empty helper clears those that are set up inside: credentials for one call are stored nowhere.
        ("credential.helper", ""),
        (f"credential.{find_origin(login.url)}.helper", _HELPER),
    ]
    # For the whole URL: of several settings for http the one with the longest URL holds, and one with a user before one
    # without. Without its password: these are variables.
    parts, origin = urlsplit(login.url), find_origin(login.url)
    bare = f"{origin}{parts.path}"
    users = [f"{parts.scheme}://{parts.username}@{origin.partition('://')[2]}{parts.path}"] if parts.username else []
    found += [
        (f"http.{url}.{key}", value)
        for url in (bare, *users)
        for key, value in (
            ("sslVerify", "false" if insecure else "true"),
            ("proxy", proxy),
            ("followRedirects", "initial"),
            ("extraHeader", ""),
            ("curloptResolve", ""),
            ("saveCookies", "false"),
            ("delegation", "none"),
        )
    ]
    if login.remote is not None:
        found.append((f"remote.{login.remote}.proxy", proxy))
    return found


def seal_variables(login: Login, env: Mapping[str, str], *, bundle: str | None) -> dict[str, str]:
    """Variables for the call. Those that the caller has set for the sandbox are used; programs inside can't set any."""
    scheme = urlsplit(login.url).scheme
    sealed = {
        **seal_reading(env),
        "GIT_ALLOW_PROTOCOL": scheme,
        "GIT_NO_LAZY_FETCH": "1",
    }
    trusted = env.get("GIT_SSL_CAINFO") or bundle
    if scheme == "https" and trusted is not None:
        # Both: a certificate is good if either has it, and a repository can name either.
        folder = env.get("GIT_SSL_CAPATH") or posixpath.dirname(trusted)
        sealed |= {"GIT_SSL_CAINFO": trusted, "GIT_SSL_CAPATH": folder}
    return sealed


def find_proxy(url: str, env: Mapping[str, str]) -> str:
    """The proxy that the caller has set for the sandbox; empty without one."""
    names = ("https_proxy", "HTTPS_PROXY") if urlsplit(url).scheme == "https" else ("http_proxy",)
    return next((env[name] for name in (*names, "all_proxy", "ALL_PROXY") if env.get(name)), "")
