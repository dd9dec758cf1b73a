"""Tests of gdb_fibers.py: the fibers of //fiber:blocked_fibers, as gdb shows
them in the running program and in its core file."""

import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, 'gdb_fibers.py')
PROGRAM = os.environ.get('BLOCKED_FIBERS', 'fiber/blocked_fibers')

COMMANDS = ['info fibers', 'info fibers -bt']
# A variable of the start-up code that gdb's expressions can't name, as they
# can't where debug information has no address.
LINKERS_SYMBOL = ("python print(gdb.execute('info symbol %d' % "
                  "variable_at('completed.0'), to_string=True))")
NAMES = ('locker', 'waiter', 'sleeper', 'holder')


def gdb(*arguments, commands):
    """Output of gdb with the script loaded."""
    line = ['gdb', '-batch', '-nx', '-iex', 'set debuginfod enabled off',
            '-iex', 'set auto-load off', *arguments, '-ex', 'source ' + SCRIPT]
    for command in commands:
        # The mark tells where the next command's output starts.
        line += ['-ex', 'echo \\n@@@ %s\\n' % command, '-ex', command]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=240, check=False)
    return done.stdout


def allow_core_files():
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


def output_of(command, text):
    """The output of `command`, in the output of gdb()."""
    mark = '\n@@@ %s\n' % command
    start = text.index(mark) + len(mark)
    return text[start:].split('\n@@@ ')[0]


def number_of(name, listing):
    match = re.search(r'^(\d+) +"%s"' % name, listing, re.MULTILINE)
    return match.group(1)


def why_not():
    """A reason for not running these tests, or ''."""
    if not shutil.which('gdb'):
        return 'gdb is not installed'
    with open(PROGRAM, 'rb') as program:
        if re.search(b'__[at]san_init', program.read()):
            return "the sanitizers' shadow memory is too large for core files"
    return ''


@unittest.skipIf(why_not(), why_not())
class GdbFibersTest(unittest.TestCase):
    """Each looks at the same output, as attaching takes seconds."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(
            dir=os.environ.get('TEST_TMPDIR'))
        core = os.path.join(cls.folder.name, 'core')
        with subprocess.Popen([PROGRAM, 'unguarded'], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as program:
            assert program.stdout.readline() == b'ready\n'
            attach = ['-p', str(program.pid)]
            cls.live = gdb(*attach, commands=COMMANDS + [
                'fiber 99', 'fiber', 'info fibers x', LINKERS_SYMBOL,
                'generate-core-file ' + core])
            listing = output_of('info fibers', cls.live)
            cls.select = gdb(*attach, commands=[
                'fiber ' + number_of('waiter', listing), 'bt', 'fiber off',
                'thread', 'fiber bt ' + number_of('locker', listing)])
            program.stdin.close()  # It ends, unharmed.
            cls.exit_status = program.wait(timeout=60)
        cls.dead = gdb(PROGRAM, core, commands=COMMANDS)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check_listing(self, text):
        listing = output_of('info fibers', text)
        for name in NAMES:
            self.assertEqual(listing.count('"%s"' % name), 1, text)
        self.assertIn('4 fibers, 1 of them running', listing)
        self.assertRegex(listing, r'"locker" id \d+ on 0x[0-9a-f]+, waits: '
                                  r'Mutex')
        self.assertRegex(listing, r'"waiter" on 0x[0-9a-f]+, waits: Event')
        self.assertRegex(listing, r'"holder".* running on thread \d+')
        self.assertRegex(listing, r'"holder".* entry .*Fiber')

    def stacks(self, text):
        """The backtrace of each fiber, by its name."""
        found = {}
        name = None
        for line in output_of('info fibers -bt', text).splitlines():
            start = re.match(r'\d+ +"(\w+)"', line)
            if start:
                name = start.group(1)
                found[name] = []
            elif name is not None and line.startswith('     #'):
                found[name].append(line)
        return {name: '\n'.join(lines) for name, lines in found.items()}

    def check_stacks(self, text):
        stacks = self.stacks(text)
        self.assertEqual(sorted(stacks), sorted(NAMES), text)
        self.assertIn('blocked_fibers::WaitForMutex', stacks['locker'])
        self.assertIn('flare::fiber::Mutex::', stacks['locker'])
        self.assertEqual(
            stacks['waiter'].count('blocked_fibers::WaitForEvent'), 4)
        self.assertIn('blocked_fibers::HoldWorker', stacks['holder'])
        self.assertIn('read', stacks['holder'])
        for name in NAMES:
            self.assertIn('flare::fiber::Worker::Loop', stacks[name])
            self.assertNotIn('the stack ends here', stacks[name])

    def test_lists_fibers_of_a_live_process(self):
        self.check_listing(self.live)
        # Only there gdb knows the time.
        self.assertRegex(output_of('info fibers', self.live),
                         r'"waiter".* for \d+\.\d+ s')

    def test_shows_their_stacks(self):
        self.check_stacks(self.live)

    def test_needs_no_debug_information(self):
        stripped = os.path.join(self.folder.name, 'stripped')
        subprocess.run(['strip', '--strip-debug', '-o', stripped, PROGRAM],
                       check=True)
        with subprocess.Popen([stripped], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as program:
            self.assertEqual(program.stdout.readline(), b'ready\n')
            text = gdb('-p', str(program.pid), commands=['info fibers -bt'])
            program.stdin.close()
        self.check_stacks(text)

    def test_lists_fibers_of_a_core_file(self):
        self.check_listing(self.dead)

    def test_shows_the_stacks_of_a_core_file(self):
        self.check_stacks(self.dead)
        # The very same.
        waiter = self.stacks(self.live)['waiter']
        self.assertEqual(waiter, self.stacks(self.dead)['waiter'])

    def test_reads_core_files_of_the_kernel(self):
        with open('/proc/sys/kernel/core_pattern', encoding='ascii') as f:
            if f.read().startswith(('|', '/')):
                self.skipTest('core files go elsewhere on this system')
        folder = os.path.join(self.folder.name, 'crash')
        os.mkdir(folder)
        with subprocess.Popen(
                [os.path.abspath(PROGRAM)], cwd=folder, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                preexec_fn=allow_core_files) as program:
            self.assertEqual(program.stdout.readline(), b'ready\n')
            program.send_signal(signal.SIGABRT)
            program.wait(timeout=60)
        cores = os.listdir(folder)
        if not cores:
            self.skipTest('no core files in this environment')
        text = gdb(PROGRAM, os.path.join(folder, cores[0]), commands=COMMANDS)
        self.check_listing(text)
        self.check_stacks(text)

    def test_a_selected_fiber_is_what_gdb_shows(self):
        self.assertEqual(self.select.count('@@@ bt'), 1)
        selected = output_of('bt', self.select)
        self.assertEqual(selected.count('blocked_fibers::WaitForEvent'), 4)

    def test_one_backtrace(self):
        last = self.select.split('\n@@@ fiber bt ')[1]
        self.assertIn('"locker"', last)
        self.assertIn('blocked_fibers::WaitForMutex', last)
        self.assertNotIn('WaitForEvent', last)

    def test_mistakes_are_explained(self):
        self.assertIn('no fiber 99: `info fibers` lists 1 to 4', self.live)
        self.assertIn('usage: fiber N', self.live)
        self.assertIn('usage: info fibers', self.live)

    def test_variables_that_only_the_linker_knows_are_found(self):
        self.assertRegex(output_of(LINKERS_SYMBOL, self.live),
                         r'^completed(\.0)? in section \.bss')

    def test_the_program_goes_on_unharmed(self):
        self.assertEqual(self.exit_status, 0)

    def test_other_programs_are_told_apart(self):
        text = gdb('/bin/true', commands=['info fibers'])
        self.assertIn('no flare_debug_layout', text)

    def test_a_program_that_does_not_run_has_no_fibers(self):
        text = gdb(PROGRAM, commands=['info fibers', 'fiber 1'])
        self.assertEqual(text.count('there is no process: run'), 2, text)


if __name__ == '__main__':
    unittest_xml.main()
