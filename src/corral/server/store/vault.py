"""The values of secrets at rest: encrypted, with a key in a file of its own beside the database.

A copy of the database alone tells nothing. Who can read the folder as its owner can read both.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from corral.errors import BackendUnavailableError
from corral.inside.nolinks import opened

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FILE = "secrets.key"
_KEY_BYTES = 32
_NONCE_BYTES = 12


class Vault:
    """Seals and opens values with AES-256-GCM."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the server's own; the key is made there with the first value."""
        self._path = folder / FILE
        self._cipher: AESGCM | None = None

    def seal(self, value: str, *, about: str) -> bytes:
        """A value, encrypted; only as the value of what `about` names can it be opened.

        Raises: BackendUnavailableError.
        """
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._load(make=True).encrypt(nonce, value.encode(), about.encode())

    def open(self, sealed: bytes, *, about: str) -> str:
        """The value. Raises: BackendUnavailableError if the key is another one, or gone."""
        from cryptography.exceptions import InvalidTag

        cipher = self._load(make=False)
        try:
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about.encode()).decode()
        except InvalidTag:
            raise BackendUnavailableError(
                f"a stored secret can't be decrypted: {FILE} is not the file that it was encrypted with",
                hint=f"restore {FILE} from a backup, or set the values of the secrets again",
            ) from None

    def _load(self, *, make: bool) -> AESGCM:
        if self._cipher is None:
            try:
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            except ImportError as error:
                raise BackendUnavailableError(
                    "storing secrets needs the package cryptography", hint="pip install 'corral[server]'"
                ) from error
            if make and not self._path.exists():
                self._make()
            self._cipher = AESGCM(self._read())
        return self._cipher

    def _make(self) -> None:
        """Complete before it has its name: another process may be at it as well."""
        unfinished = self._path.with_name(f".{FILE}-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            with opened(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)) as file:
                os.write(file, os.urandom(_KEY_BYTES))
                os.fsync(file)
            with contextlib.suppress(FileExistsError):
                os.link(unfinished, self._path)
        except OSError as error:
            raise BackendUnavailableError(
                f"{FILE} can't be written: {error.strerror}", hint="check the disk"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)

    def _read(self) -> bytes:
        try:
            with opened(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as file:
                found = os.fstat(file)
                key = os.read(file, _KEY_BYTES + 1)
        except OSError as error:
            raise BackendUnavailableError(
                f"{FILE} in the server's data folder can't be read: {error.strerror}",
                hint="restore it from a backup, or delete the stored secrets and create them again",
            ) from error
        if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.geteuid():
            raise BackendUnavailableError(
                f"{FILE} in the server's data folder can be read by other users", hint=f"chmod 600 {FILE}"
            )
        if len(key) != _KEY_BYTES:
            raise BackendUnavailableError(
                f"{FILE} in the server's data folder is damaged: it must have {_KEY_BYTES} bytes",
                hint="restore it from a backup, or delete it and the stored secrets",
            )
        return key
