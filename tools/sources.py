"""Shared by the checks of this folder: the files of the checkout, and --help."""

import os
import subprocess
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def tracked_files(*suffixes, root=REPO):
    """Paths, relative to the top, that git knows or would not ignore.

    Files that are gone from the disk are left out, and links, such as those
    of include/, which lead to files of the list.
    """
    listed = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=root, check=True, stdout=subprocess.PIPE).stdout
    return [path for path in sorted(set(listed.decode().split('\0')))
            if path and path.endswith(suffixes or ('',)) and
            os.path.isfile(os.path.join(root, path)) and
            not os.path.islink(os.path.join(root, path))]


def read(path, root=REPO):
    with open(os.path.join(root, path), encoding='utf-8') as file:
        return file.read()


def help_for(text):
    """Prints the script's docstring and exits, if -h or --help asks for it."""
    if sys.argv[1:2] in (['-h'], ['--help']):
        print(text.strip())
        sys.exit(0)


def report(problems, what):
    """Prints the problems, then the verdict; returns the exit status."""
    for problem in problems:
        print(problem)
    if problems:
        print('%s: %d problem(s)' % (what, len(problems)))
        return 1
    print('%s: fine' % what)
    return 0
