"""The commands of docs/tutorial.md do as the page says."""

import os
import re
import socket
import subprocess
import tempfile
import unittest

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
# Where the programs are; tools/test_cmake names another folder.
BUILD = os.environ.get('TUTORIAL_BUILD', HERE)
PATIENCE_S = 120

# The output: by steps 2 to 6. docs/tutorial.md quotes the first three.
SERVED = """\
{"carrier":"north","cents":4900}
"""
CALLED = """\
north: 4900 cents
failed: [1001] the trip ends where it begins
failed: [2] connect to 127.0.0.1:5609: Connection refused
"""
FOUND = """\
{"prices":[{"carrier":"south","cents":3900},{"carrier":"north","cents":4900}],"missing":1}
"""
OBSERVED = r"""
{"prices":.*"missing":0}
I.* fares.Fares.Find for 127.0.0.1:\d+: ok, \d+ us
# microseconds .*
 *calls +running +failed .* +method
 *1 +0 +0 .* +fares.Fares.Find
(?:.*\n)*calls \d+
calls_running 1
(?:.*\n)*"""
DEPLOYED = r"""
{"status":"SERVING"}
stopped with status 0
"""


def free_block(size):
    """The first of `size` ports that nobody uses.

    Below those that the system gives to others meanwhile.
    """
    base = 20000 + os.getpid() % 1200 * 10
    for first in range(base, base + 100, size):
        try:
            for port in range(first, first + size):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(('127.0.0.1', port))
            return first
        except OSError:
            continue
    raise OSError('all ports from %d on are in use' % base)


class TutorialTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.symlink(BUILD, os.path.join(self.folder, 'build'))
        self.port = free_block(10)
        for name in ('commands.sh', 'fares.flags'):
            self.copy(name)

    def copy(self, name):
        """With ports from self.port on in the place of 5600 and so on."""
        with open(os.path.join(HERE, name), encoding='utf-8') as file:
            text = file.read()
        text = re.sub(r'\b560(\d)\b', lambda m: str(self.port + int(m.group(1))),
                      text)
        with open(os.path.join(self.folder, name), 'w',
                  encoding='utf-8') as file:
            file.write(text)

    def test_commands_do_what_the_page_says(self):
        done = subprocess.run(['bash', 'commands.sh'], cwd=self.folder,
                              stdout=subprocess.PIPE, timeout=PATIENCE_S)
        said = re.sub(r'\b%d(\d)\b' % (self.port // 10), r'560\1',
                      done.stdout.decode())
        self.assertRegex(said, '^' + re.escape(SERVED + CALLED + FOUND) +
                         (OBSERVED + DEPLOYED.lstrip()).lstrip() + '$')
        self.assertEqual(done.returncode, 0)


if __name__ == '__main__':
    unittest_xml.main()
