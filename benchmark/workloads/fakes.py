"""Programs that only pretend, for tests; see also workloads_test.py."""

import os
import tempfile
import time
import unittest

from . import model, processes

SERVER = """#!/bin/sh
echo "Server x listens on 127.0.0.1:1 (flare)."
exec sleep 600
"""
# Notes its arguments, and reports 1000 calls per second: 99 of 10 us, one of 1
# ms; {extra} is more of the report.
PRESS = """#!/bin/sh
echo "$@" >> {folder}/pressed
for word; do
  case "$word" in --json=*) file="${{word#--json=}}" ;; esac
done
{action}
cat > "$file" <<END
{{"qps": 1000.0, "requests": 100, "failures": 0, "avg_us": 19.9,
 "max_us": 1000.0, "histogram_ns": [[9990, 10010, 99], [999000, 1000000, 1]]
 {extra}}}
END
"""
PROGRAMS = ('server', 'relay_server', 'gdt_server', 'merge_server',
            'epoll_limit_server', 'epoll_limit_proxy', 'tcp_proxy')


def write_program(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
    os.chmod(path, 0o755)
    return path


def fake_programs(folder, extra='', action='sleep 0.02'):
    for name in PROGRAMS:
        write_program(folder, name, SERVER)
    for name in ('press', 'epoll_limit_client'):
        write_program(folder, name, PRESS.format(folder=folder, extra=extra,
                                                 action=action))
    return processes.Programs(folder)


def alive(pid):
    try:
        with open('/proc/%d/stat' % pid, encoding='ascii') as file:
            return file.read().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False


def wait_until(condition, patience=20.0):
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class InFolder(unittest.TestCase):
    """Has a folder, and a bench that keeps its files there."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def bench(self, programs=None, **scale):
        scale = {'seconds': 0.05, 'warmup': 0.0, 'grid': 'smoke', **scale}
        bench = model.Bench(programs, model.Scale(**scale), self.folder)
        self.addCleanup(bench.close)
        return bench
