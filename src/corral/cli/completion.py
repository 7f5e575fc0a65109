"""`corral completion`: the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from corral.cli import PROGRAM

VARIABLE = "_CORRAL_COMPLETE"
_LOAD_COMPLETION = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n\n"
"""A ~/.zshrc that does nothing else has no `compdef`, which click's script calls."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    eval "$(corral completion bash)"                                in ~/.bashrc
    eval "$(corral completion zsh)"                                 in ~/.zshrc
    corral completion fish > ~/.config/fish/completions/corral.fish
    """
    found = get_completion_class(shell)
    assert found is not None  # click has all three
    # Only the template: the method that fills it in also runs the shell to check its version.
    maker = found(context.find_root().command, {}, PROGRAM, VARIABLE)
    script = maker.source_template % maker.source_vars()
    click.echo(_LOAD_COMPLETION + script if shell == "zsh" else script)
