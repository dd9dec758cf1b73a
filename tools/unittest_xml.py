"""unittest.main() that also tells Bazel about each case.

    import unittest_xml
    ...
    if __name__ == '__main__':
        unittest_xml.main()

Bazel names a file in $XML_OUTPUT_FILE for the results; without it one target is
one case to those who count (tools/count_tests). Run by hand, this is just
unittest.main().
"""

import os
import time
import unittest
import xml.etree.ElementTree as ElementTree


class RecordingResult(unittest.TextTestResult):
    """Keeps an XML element of each case, besides printing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.suite = ElementTree.Element('testsuite', name='unittest')
        self.case = None
        self.started = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()
        self.begin_case(test)

    def stopTest(self, test):
        self.case.set('time', '%.3f' % (time.monotonic() - self.started))
        super().stopTest(test)

    def begin_case(self, test):
        group, _, name = test.id().rpartition('.')
        self.case = ElementTree.SubElement(self.suite, 'testcase', name=name,
                                           classname=group)

    def mark(self, test, kind, text):
        # Failures of setUpClass and the like come without a test.
        if self.case is None or not isinstance(test, unittest.TestCase):
            self.begin_case(test)
        ElementTree.SubElement(self.case, kind).text = text

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.mark(test, 'failure', self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.mark(test, 'error', self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.mark(test, 'failure', str(err[1]))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.mark(test, 'failure', 'succeeded unexpectedly')

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.mark(test, 'skipped', reason)


class Runner(unittest.TextTestRunner):
    resultclass = RecordingResult

    def run(self, test):
        result = super().run(test)
        path = os.environ.get('XML_OUTPUT_FILE')
        if path:
            root = ElementTree.Element('testsuites')
            root.append(result.suite)
            ElementTree.ElementTree(root).write(path, encoding='utf-8')
        return result


def main():
    unittest.main(testRunner=Runner, verbosity=2)
