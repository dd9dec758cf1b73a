"""Tests of the scripts that read the output of press."""

import contextlib
import io
import json
import os
import tempfile
import unittest

import unittest_xml
from load_script import load

press_merge = load('press_merge')
press_table = load('press_table')


class PressTableTest(unittest.TestCase):

    def run_on(self, **reports):
        arguments = []
        with tempfile.TemporaryDirectory() as folder:
            for name, text in reports.items():
                path = os.path.join(folder, name)
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(text)
                arguments.append('%s=%s' % (name, path))
            output = io.StringIO()
            with contextlib.redirect_stdout(output), \
                    contextlib.redirect_stderr(output):
                status = press_table.main(arguments)
        return status, output.getvalue().splitlines()

    def test_columns_are_aligned(self):
        status, lines = self.run_on(
            flare='{"qps": 1234567.8, "failures": 0, "avg_us": 9.87}',
            other='{"qps": 1, "failures": 0, "avg_us": 10000}')
        self.assertEqual(status, 0)
        self.assertEqual(len({len(line) for line in lines}), 1, lines)
        self.assertEqual(lines[2].split()[:4],
                         ['flare', '1,234,568', '0', '9.9'])

    def test_failures_are_told_by_the_status(self):
        status, _ = self.run_on(a='{"qps": 1, "failures": 3}')
        self.assertEqual(status, 1)

    def test_failures_outside_of_the_row_are_told(self):
        for more, text in (
                ('"unended": 2', '2 call(s) did not end'),
                ('"unsent": 3', '3 call(s) were never sent'),
                ('"warmup_failures_by_status": {"3": 1, "104": 1}',
                 '2 call(s) failed in the warm-up'),
                ('"tail": {"failures": 4}', '4 call(s) failed in the tail'),
                ('"tail": {"warmup_failures_by_status": {"3": 5}}',
                 '5 call(s) failed in the warm-up'),
                ('"requests": 0', 'no call succeeded')):
            status, lines = self.run_on(
                a='{"qps": 1, "failures": 0, %s}' % more)
            self.assertEqual((status, lines[0]), (1, 'press_table: a: ' + text))
            self.assertEqual(lines[1].split()[0], 'protocol')
        status, lines = self.run_on(
            a='{"qps": 0, "requests": 0, "failures": 0, "unended": 0, '
            '"warmup_failures_by_status": {}, "tail": {"requests": 5, '
            '"failures": 0, "warmup_failures_by_status": {}}}')
        self.assertEqual((status, len(lines)), (0, 3), lines)

    def test_bad_files_are_named(self):
        status, lines = self.run_on(a='not JSON')
        self.assertEqual(status, 1)
        self.assertIn('press_table: ', lines[0])
        for other in ('[1]', '{}', '{"qps": "many"}',
                      '{"qps": 1, "tail": []}'):
            status, lines = self.run_on(a=other)
            self.assertEqual((status, len(lines)), (1, 1), lines)
            self.assertIn('press_table: ', lines[0])

    def test_what_is_no_name_and_file_is_told(self):
        for arguments in ([], ['flare.json'], ['flare=']):
            output = io.StringIO()
            with contextlib.redirect_stderr(output):
                self.assertEqual(press_table.main(arguments), 1)
            self.assertIn('NAME=FILE', output.getvalue())


def press_section(qps, counts, failures=0, **more):
    """The output of press about calls: `counts` are {lowest ns: how many}."""
    successes = sum(counts.values())
    total = sum(lower * count for lower, count in counts.items())
    return {'qps': qps, 'requests': successes + failures,
            'failures': failures,
            'failures_by_status': {'3': failures} if failures else {},
            'duration_s': 2.0, 'avg_us': total / successes / 1e3,
            'max_us': max(counts) / 1e3, 'warmup_requests': 0,
            'warmup_failures_by_status': {}, **more,
            'histogram_ns': [[lower, lower, count]
                             for lower, count in sorted(counts.items())]}


class PressMergeTest(unittest.TestCase):

    def merge(self, *reports):
        """The result; a text if it is refused."""
        output, errors = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for i, report in enumerate(reports):
                paths.append(os.path.join(folder, '%d.json' % i))
                with open(paths[-1], 'w', encoding='utf-8') as file:
                    json.dump({'unended': 0, **report}, file)
            with contextlib.redirect_stdout(output), \
                    contextlib.redirect_stderr(errors):
                status = press_merge.main(paths)
        return errors.getvalue() if status else json.loads(output.getvalue())

    @staticmethod
    def of_two(first, second):
        """A report of targets a and b, with these counts."""
        counts = {lower: first.get(lower, 0) + second.get(lower, 0)
                  for lower in {**first, **second}}
        return press_section(
            3.0, counts, targets=[
                {'server_addr': 'b', **press_section(
                    1.0, second, tail=press_section(0.5, {9000: 1}, 1))},
                {'server_addr': 'a', **press_section(2.0, first)}])

    def test_targets_are_merged_by_address(self):
        merged = self.merge(self.of_two({10: 5}, {20: 1}),
                            self.of_two({10: 1, 30: 2}, {40: 7}))
        self.assertEqual([target['server_addr']
                          for target in merged['targets']], ['b', 'a'])
        b, a = merged['targets']
        self.assertEqual((a['qps'], a['requests'], a['max_us']),
                         (4.0, 8, 0.03))
        self.assertEqual(a['histogram_ns'], [[10, 10, 6], [30, 30, 2]])
        self.assertEqual(b['histogram_ns'], [[20, 20, 1], [40, 40, 7]])
        self.assertEqual((b['tail']['requests'], b['tail']['failures']), (4, 2))
        self.assertNotIn('tail', a)
        self.assertEqual(merged['requests'], a['requests'] + b['requests'])

    def test_one_file_of_targets_is_the_same(self):
        report = self.of_two({10: 5}, {20: 1, 30: 1})
        merged = self.merge(report)
        for target, original in zip(merged['targets'], report['targets']):
            for key in original.keys() - {'tail'}:
                self.assertEqual(target[key], original[key], key)
        self.assertEqual(merged['targets'][0]['tail']['histogram_ns'],
                         [[9000, 9000, 1]])

    def test_one_target_and_several_do_not_mix(self):
        self.assertIn('some of the files have several targets', self.merge(
            self.of_two({10: 5}, {20: 1}), press_section(1.0, {10: 1})))
        self.assertNotIn('targets', self.merge(press_section(1.0, {10: 1})))


if __name__ == '__main__':
    unittest_xml.main()
