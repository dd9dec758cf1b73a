"""The commands of docs/tutorial.md do as the page says."""

import os
import re
import subprocess
import tempfile
import unittest

import unittest_xml
from free_ports import free_ports

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


class TutorialTest(unittest.TestCase):

    def run_commands(self):
        """Their exit status and output, with the ports of the page."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.symlink(BUILD, os.path.join(folder.name, 'build'))
        port = free_ports(10)
        for name in ('commands.sh', 'fares.flags'):
            with open(os.path.join(HERE, name), encoding='utf-8') as file:
                text = file.read()
            text = re.sub(r'\b560(\d)\b',
                          lambda m: str(port + int(m.group(1))), text)
            with open(os.path.join(folder.name, name), 'w',
                      encoding='utf-8') as file:
                file.write(text)
        done = subprocess.run(['bash', 'commands.sh'], cwd=folder.name,
                              stdout=subprocess.PIPE, timeout=PATIENCE_S)
        return done.returncode, re.sub(r'\b%d(\d)\b' % (port // 10), r'560\1',
                                       done.stdout.decode())

    def test_commands_do_what_the_page_says(self):
        page = ('^' + re.escape(SERVED + CALLED + FOUND) +
                (OBSERVED + DEPLOYED.lstrip()).lstrip() + '$')
        # Again, as a call may take longer than a second on a busy machine.
        for _ in range(3):
            status, said = self.run_commands()
            if status == 0 and re.search(page, said):
                break
        self.assertRegex(said, page)
        self.assertEqual(status, 0)


if __name__ == '__main__':
    unittest_xml.main()
