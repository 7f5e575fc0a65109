"""RuntimeConfig: what a session's sandbox starts from, under the known name; and the known built-in ones."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from corral.errors import SpecError
from corral.image import Image
from corral.spec import Spec

PackageManager = Literal["pip", "npm", "apt", "cargo"]

_INSTALL = {"npm": "npm install -g", "cargo": "cargo install"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """The image, packages and setup of a sandbox. Without `image` and `base_image`, Python packages need no image.

    `image` is used unchanged; from `base_image` an image is built, on backends that can. `setup_commands` run during
    that build, otherwise in each new sandbox. Images are always cached; `cache_image` has no effect.
    """

    name: str
    description: str = ""
    image: str | None = None
    base_image: str | None = None
    packages: Sequence[str] = ()
    package_manager: PackageManager = "pip"
    setup_commands: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    work_dir: str = "/workspace"
    cache_image: bool = True

    def make_spec(self) -> Spec:
        """The spec of a sandbox. Raises: SpecError."""
        if self.image is not None or self.base_image is None:
            if self.packages and (self.image is not None or self.package_manager != "pip"):
                raise SpecError(
                    f"the runtime {self.name!r} lists packages but has no base image to install them on",
                    hint="set base_image=, on a backend that builds images, such as backend='docker'; without an image "
                    "only packages of pip are supported",
                )
            return Spec(image=self.image, packages=self._listed(), env=dict(self.env_vars), workdir=self.work_dir)
        return Spec(image=self._build(Image.base(self.base_image)), env=dict(self.env_vars), workdir=self.work_dir)

    @property
    def late_commands(self) -> tuple[str, ...]:
        """The setup commands to run in each new sandbox."""
        built = self.image is None and self.base_image is not None
        return () if built else tuple(self.setup_commands)

    def _build(self, image: Image) -> Image:
        packages = self._listed()
        if packages:
            if self.package_manager == "pip":
                image = image.pip_install(*packages)
            elif self.package_manager == "apt":
                image = image.apt_install(*packages)
            else:
                image = image.run(f"{_INSTALL[self.package_manager]} {' '.join(map(_quote, packages))}")
        return image.run(*self.setup_commands) if self.setup_commands else image

    def _listed(self) -> tuple[str, ...]:
        if isinstance(self.packages, str) or not isinstance(self.packages, Sequence):
            raise SpecError(f"packages={self.packages!r} is not a list", hint="use a list: packages=['numpy']")
        return tuple(self.packages)


def _quote(package: str) -> str:
    """A package for npm or cargo, which accept `@scope/name` and URLs. Raises: SpecError for an option."""
    if not isinstance(package, str) or not package or package.startswith("-") or not package.isprintable():
        raise SpecError(f"{package!r} is not a package name", hint="write it as on the command line: 'react@19'")
    return shlex.quote(package)


BUILTIN_RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        RuntimeConfig(name="python-minimal", description="Python with its standard library"),
        RuntimeConfig(
            name="python-datascience",
            description="Python with the usual packages for data",
            packages=("numpy", "pandas", "matplotlib", "scikit-learn", "seaborn"),
        ),
        RuntimeConfig(
            name="python-web",
            description="Python with the usual packages for the web",
            packages=("fastapi", "uvicorn", "sqlalchemy", "httpx"),
        ),
        RuntimeConfig(name="node-minimal", description="Node.js", image="node:20-slim"),
        RuntimeConfig(
            name="node-react",
            description="Node.js with TypeScript, Vite and React",
            base_image="node:20-slim",
            packages=("typescript", "vite", "react", "react-dom"),
            package_manager="npm",
        ),
    )
}


def get_runtime(runtime: RuntimeConfig | str) -> RuntimeConfig:
    """A built-in runtime by its name. Raises: KeyError, which lists the names."""
    if isinstance(runtime, RuntimeConfig):
        return runtime
    if runtime not in BUILTIN_RUNTIMES:
        raise KeyError(f"Unknown runtime '{runtime}'. Available: {', '.join(BUILTIN_RUNTIMES)}")
    return BUILTIN_RUNTIMES[runtime]
