"""``prepserver completion SHELL``: a completion script, generated from the parser of the command line."""

from __future__ import annotations

import argparse
import sys

from prepserver.cli import command_line, exits


def completion(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    sys.stdout.write(script(command_line(), arguments.shell))
    return exits.OK


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script for `shell` that completes commands, options and choices, else file names."""
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    commands: dict[str, argparse.ArgumentParser] = dict(subparsers.choices)
    if shell == "fish":
        return _fish(commands)
    cases = []
    for command, sub in commands.items():
        cases += [
            f"    '{command} {flag}') words='{' '.join(map(str, a.choices))}' ;;"
            for a in sub._actions
            for flag in a.option_strings
            if a.choices
        ]
        words = [*_flags(sub), *(str(c) for a in sub._actions if not a.option_strings for c in a.choices or ())]
        cases.append(f"    '{command} '*) words='{' '.join(words)}' ;;")
    bash = _BASH.format(commands=" ".join([*commands, *_flags(parser)]), cases="\n".join(cases))
    return f"autoload -U bashcompinit && bashcompinit\n{bash}" if shell == "zsh" else bash


_BASH = """\
_prepserver() {{
  local words=''
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{cases}
  esac
  [ "$COMP_CWORD" -gt 1 ] || words='{commands}'
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _prepserver prepserver
"""


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for a in parser._actions if a.help != argparse.SUPPRESS for flag in a.option_strings]


def _fish(commands: dict[str, argparse.ArgumentParser]) -> str:
    lines = [f"complete -c prepserver -n __fish_use_subcommand -f -a {command}" for command in commands]
    for command, sub in commands.items():
        here = f"complete -c prepserver -n '__fish_seen_subcommand_from {command}'"
        for action in sub._actions:
            choices = f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            if action.option_strings and action.help != argparse.SUPPRESS:
                names = [f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in action.option_strings]
                lines.append(f"{here} {' '.join(names)}{choices}")
            elif choices:
                lines.append(f"{here}{choices}")
    return "\n".join(lines) + "\n"
