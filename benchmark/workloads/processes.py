"""Child processes: started, waited for, accounted for, and ended for sure.

    with started(command, folder, pattern=LISTENING) as server:
        server.address          # What the pattern matched.
    # Ended: SIGTERM, then SIGKILL.

Each child leads a process group of its own, which is signalled, so that Ctrl-C
on the terminal reaches this program only, which then ends them; if this program
is killed, the kernel ends them.
"""

import contextlib
import ctypes
import os
import re
import resource
import shlex
import signal
import subprocess
import tempfile
import threading
import time

from .model import Failure, Missing

LISTENING = re.compile(r'listen(?:s|ing) on ([\w.\[\]:/-]+:\d+)')
PATIENCE_S = 20.0
_TICKS = os.sysconf('SC_CLK_TCK')
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _prepare_child():
    """Lets it die with this process, and have thousands of connections."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Process:
    """A running child. Its output goes to a file."""

    def __init__(self, command, folder, environment=None):
        self.command = [str(word) for word in command]
        self.address = None
        handle, self.log = tempfile.mkstemp(dir=folder, suffix='.log')
        with os.fdopen(handle, 'wb') as log:
            try:
                self._child = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True,
                    preexec_fn=_prepare_child,
                    env={**os.environ, **(environment or {})})
            except FileNotFoundError as error:
                raise Missing('no program %s' % error.filename) from error
        self.pid = self._child.pid

    @property
    def pids(self):
        """For the process and its descendants."""
        return [self.pid] + descendants(self.pid)

    def line(self):
        """The command as one types it."""
        return command_line(self.command)

    def output(self):
        with open(self.log, encoding='utf-8', errors='replace') as file:
            return file.read()

    def wait_for(self, pattern, patience=PATIENCE_S):
        """The match of `pattern` in its output, as soon as it is there."""
        deadline = time.monotonic() + patience
        while True:
            match = re.search(pattern, self.output())
            if match:
                return match
            if self._child.poll() is not None:
                raise Failure('`%s` ended with status %s:\n%s' % (
                    self.line(), self._child.returncode, self.tail()))
            if time.monotonic() > deadline:
                raise Failure('`%s` does not say "%s" within %g s:\n%s' % (
                    self.line(), getattr(pattern, 'pattern', pattern), patience,
                    self.tail()))
            time.sleep(0.005)

    def tail(self):
        return '\n'.join(self.output().splitlines()[-8:])

    def wait(self, patience):
        """Its exit status; Failure if it doesn't end."""
        try:
            return self._child.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failure('`%s` does not end within %g s:\n%s' % (
                self.line(), patience, self.tail())) from None

    def running(self):
        return self._child.poll() is None

    def end(self, patience=5.0):
        """SIGTERM, and SIGKILL for the rest after `patience` seconds."""
        if self._child.poll() is None:
            _signal_group(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(patience)
        _signal_group(self.pid, signal.SIGKILL)
        self._child.wait()


def _signal_group(leader, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


@contextlib.contextmanager
def started(command, folder, pattern=None, environment=None):
    """A Process; with a pattern, once its output has that.

    The pattern's first group becomes `address`.
    """
    process = None
    try:
        with deferred_interrupts():
            process = Process(command, folder, environment)
        if pattern is not None:
            process.address = process.wait_for(pattern).group(1)
        yield process
    finally:
        if process is not None:
            with deferred_interrupts():
                process.end()


@contextlib.contextmanager
def deferred_interrupts():
    """SIGINT and SIGTERM wait until the end of it, and then interrupt.

    So that a child is known as soon as it is there, and not forgotten while it
    ends. For the main thread; does nothing in others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending = []
    before = {number: signal.signal(number, lambda *_: pending.append(True))
              for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if pending:
        raise KeyboardInterrupt


def command_line(words):
    """As one types it, without the folders of programs and of our files."""
    temporary = re.escape(tempfile.gettempdir()) + r'/[^/]*'
    shown = []
    for word in map(str, words):
        if os.path.isabs(word) and os.path.isfile(word) and (
                os.access(word, os.X_OK)):
            shown.append(os.path.basename(word))
        else:
            word = re.sub(temporary + '/', '', word)
            shown.append(re.sub(temporary + '$', 'FOLDER', word))
    return ' '.join(shlex.quote(word) for word in shown)


def descendants(pid):
    found = []
    try:
        for task in os.listdir('/proc/%d/task' % pid):
            with open('/proc/%d/task/%s/children' % (pid, task),
                      encoding='ascii') as file:
                for child in map(int, file.read().split()):
                    found += [child] + descendants(child)
    except OSError:
        pass
    return found


def cpu_seconds(pids):
    """CPU time, user and system, that they have used since they started."""
    total = 0
    for pid in pids:
        try:
            with open('/proc/%d/stat' % pid, encoding='ascii',
                      errors='replace') as file:
                fields = file.read().rpartition(')')[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def peak_rss_kb(pids):
    """Sum of the most memory that each of them has had resident."""
    total = 0
    for pid in pids:
        try:
            with open('/proc/%d/status' % pid, encoding='utf-8') as file:
                match = re.search(r'^VmHWM:\s*(\d+)', file.read(), re.M)
        except OSError:
            continue
        total += int(match[1]) if match else 0
    return total


class Programs:
    """Finds our programs in a folder, such as bazel-bin."""

    TARGETS = ('//example/...', '//benchmark/baseline/...')

    def __init__(self, folder):
        self.folder = folder

    def path(self, name):
        """The path of "example/rpc/press"; just "press" in the folder will do,
        too."""
        for place in (name, os.path.basename(name)):
            path = os.path.join(self.folder, place)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return os.path.abspath(path)
        raise Missing('no program %s in %s: `bazel build -c opt //%s:%s`, or '
                      '--build' % (name, self.folder, os.path.dirname(name),
                                   os.path.basename(name)))
