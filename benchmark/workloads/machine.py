"""The measured system: the machine, the commit, the kind of build."""

import hashlib
import os
import platform
import re
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
# Files that change measured programs and their loads; documents and the like
# don't.
CODE = ('base', 'fiber', 'io', 'rpc', 'example', 'benchmark/baseline',
        'benchmark/peers', 'benchmark/workloads', 'tools/bazel', '.bazelrc',
        'WORKSPACE')
# Files that only write the pages, or tests of that.
NO_CODE = tuple(':!benchmark/workloads/' + name for name in (
    '*_test.py', 'command.py', 'fakes.py', 'grouping.py', 'plots.py',
    'published.py', 'report.py', 'summary.py'))


def machine():
    """One line: processor, CPUs, memory, kernel."""
    cpu = platform.machine()
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        match = re.search(r'^model name\s*: (.*)$', file.read(), re.M)
        if match:
            cpu = match[1]
    with open('/proc/meminfo', encoding='utf-8') as file:
        memory = int(re.search(r'MemTotal:\s*(\d+)', file.read())[1])
    return '%s, %d CPU(s), %.0f GiB, Linux %s' % (
        cpu, len(os.sched_getaffinity(0)), memory / (1 << 20),
        platform.release())


def git(*arguments):
    done = subprocess.run(['git', '-C', TOP, *arguments], capture_output=True,
                          text=True, check=False)
    return done.stdout if done.returncode == 0 else ''


def commit():
    """The last commit that changed code; with changes since, their hash, too.
    """
    code = [path for path in CODE if os.path.exists(os.path.join(TOP, path))]
    code += NO_CODE
    last = git('log', '-1', '--format=%h', '--', *code).strip() or 'unknown'
    changes = git('diff', 'HEAD', '--', *code)
    if not changes:
        return last
    return '%s+%s' % (last, hashlib.sha1(changes.encode()).hexdigest()[:6])


def bazel_output(folder):
    """A match if it is in Bazel's: the configuration, compilation mode and
    "release"."""
    return re.search(
        r'/bazel-out/([\w.]+-(opt|dbg|fastbuild)(release)?[\w-]*)/',
        os.path.realpath(folder) + '/')


def build_mode(folder):
    """How the programs of a folder were built, as far as its path tells."""
    match = bazel_output(folder)
    if not match:
        return 'programs in %s' % os.path.basename(os.path.abspath(folder))
    return 'bazel --config=release' if match[3] else 'bazel -c ' + match[2]


def build_key(folder):
    """A word that tells builds of one commit apart: Bazel's configuration, or
    the folder."""
    match = bazel_output(folder)
    if match:
        return match[1]
    path = os.path.realpath(folder)
    return '%s@%s' % (os.path.basename(path),
                      hashlib.sha1(path.encode()).hexdigest()[:6])
