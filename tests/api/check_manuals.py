#!/usr/bin/env python3
"""Compares the manual pages with what they describe, in both directions.

  options     what --help of a program prints              the bold --options of its page
  commands    what --help of marudctl lists                the entries of its page's section COMMANDS, each with its options,
                                                           and what OPTIONS says of which command takes them
  entries     a line of their own                          an empty line before it, without which scdoc joins two
  width       the lines of a page, and of --help,          none is wider: examples are not wrapped
              on a terminal of 80 columns
  keys        what the parser of the configuration asks    the entries "*key* = ..." of marud.toml(5), and those of
                                                           maru-eventd.toml(5) and maru-tierd.toml(5)
  functions   what maru.h, follow.h and tracing.h export   the names *maru_...*(3) of libmaru(3), and their pages
              what tokens.h exports                        those of libmaru-tokens(3), and their pages (function_pages.py);
                                                          layout.h and libmaru-layout(3) likewise, and adapters.h, and
                                                          spans.h, rope.h and libmaru-blend(3)
  pages       what the pages refer to, *maru...*(N)        the pages that there are

  check_manuals.py --sources DIR --build DIR --compiler CC --marud PROGRAM --marudctl PROGRAM --replay PROGRAM
                    --provision PROGRAM --simulator PROGRAM --eventd PROGRAM --tierd PROGRAM

Pages that were not built (scdoc is missing) are not looked for in the build folder.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

import function_pages
from function_pages import section

COLUMNS = 80  # of a terminal

mistakes = []


def compare(page, what, real, documented):
    if not real:
        mistakes.append(f'{page}: found no {what} to compare with; has the place where they are looked for changed?')
    for name in sorted(real - documented):
        mistakes.append(f'{page}: does not describe {what} {name}')
    for name in sorted(documented - real):
        mistakes.append(f'{page}: describes {what} {name}, which there is not')
    print(f'{page}: {len(real)} {what}')


def without_examples(text):
    return re.sub(r'^```$.*?^```$', '', text, flags=re.MULTILINE | re.DOTALL)


def help_of(program, *words):
    return subprocess.run([program, *words, '--help'], check=True, capture_output=True, text=True, timeout=30).stdout


def check_lines(what, text):
    for line in text.splitlines():
        if len(line) > COLUMNS:
            mistakes.append(f'{what}: {len(line)} columns, expected at most {COLUMNS}: {line.strip()}')


def check_program(page, text, program):
    # A page names options of other programs inside one bold text with the program, "*marud --config*". These two are
    # there whether the summary says so or not.
    real = set(re.findall(r'(?<![\w-])--[a-z][a-z-]*', help_of(program)))
    check_lines(f'{page}, --help', help_of(program))
    for always in ('--help', '--version'):
        subprocess.run([program, always], check=True, stdout=subprocess.DEVNULL, timeout=30)
        real.add(always)
    compare(page, 'option', real,
            set(re.findall(r'\*(--[a-z][a-z-]*)\*', without_examples(text))))


def check_commands(page, text, program):
    commands = section(help_of(program).replace('Commands:\n', '# Commands\n').replace('Options:\n', '# Options\n'), 'Commands')
    name = r'([a-z][a-z-]*(?: [a-z][a-z-]*)?)'
    compare(page, 'command', set(re.findall('^  ' + name, commands, re.MULTILINE)),
            set(re.findall(r'^\*' + name + r'\*', section(text, 'COMMANDS'), re.MULTILINE)))


def check_command_options(page, text, program):
    """A command's options stand in its entry, and in OPTIONS, where the entry of each option names who takes it."""
    commands = section(help_of(program).replace('Commands:\n', '# Commands\n').replace('Options:\n', '# Options\n'), 'Commands')
    takes = {}  # option: commands
    shown = {}  # command: options
    name = r'([a-z][a-z-]*(?: [a-z][a-z-]*)?)'
    for usage in re.split(r'^  (?=[a-z])', commands, flags=re.MULTILINE)[1:]:
        command = re.match(name, usage).group(1)
        shown[command] = set(re.findall(r'(?<![\w-])--[a-z][a-z-]*', usage.rsplit('\n      ', 1)[0]))
        for option in shown[command]:
            takes.setdefault(option, set()).add(command)
    entries = {}
    for entry in re.findall(r'^\*' + name + r'\*(.*)$', section(text, 'COMMANDS'), re.MULTILINE):
        entries.setdefault(entry[0], set()).update(re.findall(r'\*(--[a-z][a-z-]*)\*', entry[1]))
    for command, options in shown.items():
        check_lines(f'{page}, {command} --help', help_of(program, *command.split()))
        compare(f'{page}, {command}', 'option', options, entries.get(command, set())) if options else None
    described = {}
    for heading, body in re.findall(r'^(\*--.*)\n((?:\t.*\n)+)', section(text, 'OPTIONS') + '\n', re.MULTILINE):
        for option in re.findall(r'\*(--[a-z][a-z-]*)\*', heading):
            described[option] = body.replace('\n\t', ' ')
    for option, commands in takes.items():
        for command in commands:
            if f'*{command}*' not in described.get(option, ''):
                mistakes.append(f'{page}: {option} in OPTIONS does not say that {command} takes it')


def check_entries(page, text):
    for first, second in zip(text.splitlines(), text.splitlines()[1:]):
        if first.startswith('\t') and second.startswith('*'):
            mistakes.append(f'{page}: no empty line before "{second}"')


def check_width(page, source):
    """As man shows the page, without marks for bold and underlined."""
    if shutil.which('scdoc') is None or shutil.which('groff') is None:
        return False
    roff = subprocess.run(['scdoc'], input=source, check=True, capture_output=True, text=True, timeout=60).stdout
    shown = subprocess.run(['groff', '-t', '-man', '-Tutf8', '-P-cbou', '-rLL=78n'], input=roff, check=True,
                           capture_output=True, text=True, timeout=60).stdout
    check_lines(page, shown)
    return True


def check_keys(page, text, daemon):
    # Whatever a table of the configuration is asked for by name is a key or, for table() and tables(), a table.
    readers = set(re.findall(r'(\w+)\(const char\* key\b', (daemon / 'config/table.h').read_text()))
    asked = re.compile(r'\.(' + '|'.join(sorted(readers)) + r')\("(\w+)"')
    found = set()
    for path in sorted([*daemon.glob('config/*.cc'), daemon / 'tools/provision/wish.cc']):
        found |= set(asked.findall(path.read_text()))
    tables = {name for reader, name in found if reader in ('table', 'tables')}
    keys = {name for _, name in found} - tables
    entries = re.findall(r'^(\*\w+\* = .*)$', without_examples(text), re.MULTILINE)
    compare(page, 'key', keys, {name for entry in entries for name in re.findall(r'\*(\w+)\* =', entry)})
    compare(page, 'table', tables, set(re.findall(r'^# THE TABLES? \[+(?:\w+\.)?(\w+)\]+$', text, re.MULTILINE)))


def check_keys_of_follower(page, text, sources):
    """Of a program beside marud. `sources` ask a table of the configuration, or a reader of a tier's options; a few ask for
    keys by a list or a function of their own. An entry begins with its keys; a table is named in a heading."""
    code = ''.join(path.read_text() for path in sources)
    asked = set(re.findall(r'\b(?:table|root|reader)(?:\.|->)'
                           r'(text|texts|one_of|size|integer|boolean|scalars|number|flag|table|tables)\("(\w+)"', code))
    tables = {name for reader, name in asked if reader in ('table', 'tables')}
    headings = re.findall(r'^(\*\w+\*(?: = |, |$).*)$', without_examples(text), re.MULTILINE)
    described = {name for heading in headings for name in re.findall(r'\*([a-z]\w*)\*', heading)}
    named = set(re.findall(r'"(\w+)"', code))
    compare(page, 'key', {name for _, name in asked} - tables | described & named, described)
    compare(page, 'table', tables, set(re.findall(r'^# (?:THE )?(?:TABLES? )?\[+(?:\w+\.)?(\w+)\]+$', text, re.MULTILINE)))


def check_functions(page, text, *headers):
    public = r'^MARU_(?:TOKENS_|LAYOUT_|BLEND_|ADAPTERS_)?PUBLIC\b[^;(]*?\b(maru_\w+)\('
    compare(page, 'function', set(re.findall(public, ''.join(header.read_text() for header in headers), re.MULTILINE)),
            set(re.findall(r'\*(maru_\w+)\*\(3\)', without_examples(text))))


def check_references(pages, functions):
    """Ours begin with "maru" or are libmaru; who refers to a page of another project has to know it."""
    there = {re.sub(r'^(.*)\.(\d)$', r'\1(\2)', page) for page in pages} | {name + '(3)' for name in functions}
    referred = {}
    for page, text in pages.items():
        for name, number in re.findall(r'\*((?:lib)?maru[\w.-]*)\*\((\d)\)', without_examples(text)):
            referred.setdefault(f'{name}({number})', page)
    for name in sorted(referred.keys() - there):
        mistakes.append(f'{referred[name]}: refers to {name}, which there is not')
    print(f'{len(referred)} pages are referred to')


def main():
    parser = argparse.ArgumentParser()
    for name in ('sources', 'build', 'compiler', 'marud', 'marudctl', 'provision', 'replay', 'simulator', 'eventd', 'tierd'):
        parser.add_argument('--' + name, required=True)
    arguments = parser.parse_args()
    sources = pathlib.Path(arguments.sources)
    pages = {path.name.removesuffix('.scd'): path.read_text() for path in (sources / 'man').glob('*.scd')}

    check_program('marud.8', pages['marud.8'], arguments.marud)
    check_program('marudctl.1', pages['marudctl.1'], arguments.marudctl)
    check_commands('marudctl.1', pages['marudctl.1'], arguments.marudctl)
    check_command_options('marudctl.1', pages['marudctl.1'], arguments.marudctl)
    for page, text in pages.items():
        check_entries(page, text)
    if not all([check_width(page, text) for page, text in sorted(pages.items())]):
        print('without scdoc and groff (Debian packages of these names) nobody looked how wide the pages are')
    check_program('marud-provision.8', pages['marud-provision.8'], arguments.provision)
    check_program('maru-replay.1', pages['maru-replay.1'], arguments.replay)
    check_program('maru-policy-sim.1', pages['maru-policy-sim.1'], arguments.simulator)
    check_keys('marud.toml.5', pages['marud.toml.5'], sources / 'daemon')
    daemon = sources / 'daemon'
    tiers = daemon.glob('tierd/tiers/**/*.cc')
    for name, program, parsers in (('eventd', arguments.eventd, [daemon / 'eventd/settings.cc']),
                                   ('tierd', arguments.tierd, [daemon / 'tierd/settings.cc', *tiers])):
        check_program(f'maru-{name}.8', pages[f'maru-{name}.8'], program)
        page = f'maru-{name}.toml.5'
        check_keys_of_follower(page, pages[page], [*daemon.glob('beside/*.cc'), *parsers])
    check_functions('libmaru.3', pages['libmaru.3'], sources / 'include/maru/maru.h', sources / 'include/maru/follow.h',
                    sources / 'include/maru/tracing.h')
    check_functions('libmaru-tokens.3', pages['libmaru-tokens.3'], sources / 'include/maru/tokens.h')
    check_functions('libmaru-layout.3', pages['libmaru-layout.3'], sources / 'include/maru/layout.h')
    check_functions('libmaru-adapters.3', pages['libmaru-adapters.3'], sources / 'include/maru/adapters.h')
    check_functions('libmaru-blend.3', pages['libmaru-blend.3'], sources / 'include/maru/spans.h',
                    sources / 'include/maru/rope.h')
    check_functions('libmaru-prefetch.3', pages['libmaru-prefetch.3'], sources / 'include/maru/prefetch.h')
    for library in ('libmaru-tokens', 'libmaru-layout', 'libmaru-adapters', 'libmaru-blend', 'libmaru-prefetch'):
        function_pages.compile_example(library, pages[library + '.3'], arguments.compiler, sources / 'include', mistakes)
    header = ''.join((sources / 'include/maru' / name).read_text()
                     for name in ('maru.h', 'follow.h', 'tracing.h', 'tokens.h', 'layout.h', 'adapters.h', 'spans.h', 'rope.h',
                                  'prefetch.h'))
    function_pages.compile_example('libmaru', pages['libmaru.3'], arguments.compiler, sources / 'include', mistakes)
    found = function_pages.installed(arguments.build, mistakes)
    if found:
        own = {page.removesuffix('.3'): text for page, text in pages.items() if re.match(r'maru_.*\.3$', page)}
        function_pages.check(own, header, found, arguments.compiler, sources / 'include', mistakes)
    else:
        print('no manual pages are built here (Debian package scdoc), so nobody looked which of them man finds')
    check_references(pages, function_pages.functions(header))
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    return 1 if mistakes else 0


if __name__ == '__main__':
    sys.exit(main())
