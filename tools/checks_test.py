"""Tests of the scripts that judge others: each must see its faults."""

import io
import os
import re
import subprocess
import tempfile
import unittest
import unittest.mock

import unittest_xml
from load_script import load

check_cmake = load('check_cmake')
check_cycles = load('check_cycles')
check_docs = load('check_docs')
check_includes = load('check_includes')
check_layers = load('check_layers')
check_orderings = load('check_orderings')
check_prose = load('check_prose')
count_tests = load('count_tests')
program_docs = load('program_docs')
site_headers = load('site_headers.py')


class LocksTest(unittest.TestCase):
    """The sanitizers' builds check contracts of locks, by these options."""

    OPTIONS = ['-Wno-everything', '-Werror=thread-safety']
    # The files themselves, where Bazel has links to some.
    REPO = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

    def compiles(self, body):
        code = ('#include "flare/base/spinlock.h"\n'
                'flare::Spinlock lock;\n'
                'int guarded FLARE_GUARDED_BY(lock);\n'
                'int Read() { %s return guarded; }\n' % body)
        return subprocess.run(
            ['clang++', '-std=c++20', '-fsyntax-only', *self.OPTIONS,
             '-Iinclude', '-x', 'c++', '-'],
            cwd=self.REPO, input=code, text=True, capture_output=True,
            check=False).returncode == 0

    def test_libraries_are_built_by_these_options(self):
        with open(os.path.join(self.REPO, 'tools/bazel/flare.bzl'),
                  encoding='utf-8') as file:
            text = file.read()
        self.assertIn('_QUIET = ["%s"]\n_LOCKS = _QUIET + ["%s"]\n' %
                      tuple(self.OPTIONS), text)
        [copts] = re.findall(r'(?s)def _part_copts\(\):.*?\n\n', text)
        self.assertIn('_ours("//:plain"): _LOCKS + (', copts)

    def test_reads_without_the_lock_are_errors(self):
        self.assertTrue(self.compiles('flare::ScopedLock guard(lock);'))
        self.assertFalse(self.compiles(''))


class CountTestsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def xml(self, cases):
        path = os.path.join(self.folder.name,
                            '%d.xml' % len(os.listdir(self.folder.name)))
        with open(path, 'w', encoding='utf-8') as file:
            file.write('<testsuites><testsuite>%s</testsuite></testsuites>' %
                       cases)
        return path

    @staticmethod
    def configured(label):
        return {'id': {'targetConfigured': {'label': label}},
                'configured': {'testSize': 'SMALL'}}

    @staticmethod
    def result(label, status, xml, run=1):
        outputs = [{'name': 'test.xml', 'uri': 'file://' + xml}] if xml else []
        return {'id': {'testResult': {'label': label, 'run': run}},
                'testResult': {'status': status, 'testActionOutput': outputs}}

    def count(self, *events):
        tally = count_tests.count(events)
        return tally.passed, len(tally.failed), len(tally.skipped)

    def test_counts_cases_not_targets(self):
        xml = self.xml('<testcase name="a" classname="S" status="run"/>'
                       '<testcase name="b" classname="S" status="run"/>')
        self.assertEqual(self.count(self.configured('//a'),
                                    self.result('//a', 'PASSED', xml)),
                         (2, 0, 0))

    def test_counts_failures_and_skipped_cases(self):
        xml = self.xml('<testcase name="a"/>'
                       '<testcase name="b"><failure message="x"/></testcase>'
                       '<testcase name="c"><skipped/></testcase>'
                       '<testcase name="d" status="notrun"/>')
        self.assertEqual(self.count(self.result('//a', 'FAILED', xml)),
                         (1, 1, 2))

    def test_names_what_failed(self):
        xml = self.xml('<testcase name="b" classname="S"><failure/></testcase>')
        tally = count_tests.count([self.result('//a:t', 'FAILED', xml)])
        self.assertEqual(tally.failed, ['//a:t S.b'])

    def test_tells_the_beginning_of_what_a_failed_case_said(self):
        long = 'x' * 100000
        lines = '&#10;'.join('line %d' % i for i in range(1000))
        xml = self.xml('<testcase name="b" classname="S">'
                       '<failure message="m">a.cc:1&#10;%s</failure>'
                       '<failure message="a.cc:2"/></testcase>'
                       '<testcase name="c" classname="S">'
                       '<error>%s</error></testcase>' % (long, lines))
        said = count_tests.count([self.result('//a', 'FAILED', xml)]).said
        self.assertEqual(said['//a S.b'],
                         ['a.cc:1', long[:count_tests.SHOWN_COLUMNS], 'a.cc:2'])
        self.assertEqual(len(said['//a S.c']), count_tests.SHOWN_LINES + 1)
        self.assertEqual(said['//a S.c'][0], 'line 0')
        self.assertEqual(said['//a S.c'][-1], 'line 999')

    def test_death_after_the_last_case_is_a_failure(self):
        xml = self.xml('<testcase name="a"/>')
        self.assertEqual(self.count(self.result('//a', 'FAILED', xml)),
                         (1, 1, 0))

    def test_death_without_a_report_is_a_failure(self):
        for xml in (None, os.path.join(self.folder.name, 'missing.xml')):
            self.assertEqual(self.count(self.result('//a', 'TIMEOUT', xml)),
                             (0, 1, 0))

    def test_tells_the_end_of_what_a_dead_test_said(self):
        path = os.path.join(self.folder.name, 'test.log')
        with open(path, 'wb') as file:
            file.write(b'\xff\n' * 100 + b'SUMMARY: a race\n')
        event = self.result('//a', 'FAILED', None)
        event['testResult']['testActionOutput'] = [
            {'name': 'test.log', 'uri': 'file://' + path}]
        tally = count_tests.count([event])
        self.assertEqual(tally.failed, ['//a (failed)'])
        self.assertEqual(tally.said['//a (failed)'][-1], 'SUMMARY: a race')
        self.assertEqual(len(tally.said['//a (failed)']),
                         count_tests.SHOWN_LINES)

    def test_unreadable_report_is_no_pass_of_a_failed_test(self):
        path = os.path.join(self.folder.name, 'bad.xml')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('<testsuites><testcase')
        self.assertEqual(self.count(self.result('//a', 'FAILED', path)),
                         (0, 1, 0))

    def test_report_without_cases_is_no_pass(self):
        tally = count_tests.count([self.result('//a', 'PASSED', self.xml('')),
                                   self.result('//b', 'PASSED', None)])
        self.assertEqual((tally.passed, tally.empty), (1, ['//a']))

    def test_target_that_was_not_built_is_a_failure(self):
        self.assertEqual(self.count(self.configured('//a')), (0, 1, 0))

    def test_last_attempt_counts(self):
        bad = self.xml('<testcase name="a"><failure/></testcase>')
        good = self.xml('<testcase name="a"/>')
        self.assertEqual(self.count(self.result('//a', 'FAILED', bad),
                                    self.result('//a', 'PASSED', good)),
                         (1, 0, 0))

    def test_each_run_counts(self):
        good = self.xml('<testcase name="a"/>')
        self.assertEqual(self.count(self.result('//a', 'PASSED', good, 1),
                                    self.result('//a', 'PASSED', good, 2)),
                         (2, 0, 0))

    def test_reads_what_our_own_python_tests_write(self):
        class Cases(unittest.TestCase):
            def test_good(self):
                pass
            def test_bad(self):
                self.fail('bad <&>')
            def test_broken(self):
                raise KeyError('x')
            @unittest.skip('not today')
            def test_skipped(self):
                pass
            def test_parts(self):
                for i in range(3):
                    with self.subTest(i=i):
                        self.assertEqual(i, 1)
        path = os.path.join(self.folder.name, 'test.xml')
        os.environ, saved = dict(os.environ, XML_OUTPUT_FILE=path), os.environ
        try:
            unittest_xml.Runner(stream=io.StringIO()).run(
                unittest.defaultTestLoader.loadTestsFromTestCase(Cases))
        finally:
            os.environ = saved
        self.assertEqual(self.count(self.result('//a', 'FAILED', path)),
                         (1, 3, 1))


class CheckIncludesTest(unittest.TestCase):

    def missing(self, text, header=''):
        return list(check_includes.check('fiber/x.cc', text, header))

    def test_what_is_used_must_be_included(self):
        self.assertEqual(
            self.missing('std::vector<int> v;\nstd::sort(v.begin(), v.end());'),
            ['fiber/x.cc: std::sort is used, but <algorithm> is not included',
             'fiber/x.cc: std::vector is used, but <vector> is not included'])
        self.assertEqual(
            self.missing('#include <vector>\nstd::vector<int> v;'), [])

    def test_the_own_header_counts(self):
        self.assertEqual(self.missing('std::mutex m;', '#include <mutex>\n'),
                         [])
        for path in ('fiber/x.cc', 'fiber/x_test.cc'):
            self.assertEqual(
                check_includes.own_header(path, {'fiber/x.h'}.__contains__),
                'fiber/x.h')
        self.assertEqual(
            check_includes.own_header('fiber/sync/x_test.cc',
                                      {'fiber/x.h'}.__contains__),
            'fiber/x.h')

    def test_macros_are_seen_where_they_are_used(self):
        self.assertIn('<glog/logging.h>', self.missing('  CHECK(yes);')[0])
        self.assertEqual(
            self.missing('#include "glog/logging.h"\n  CHECK(yes);'), [])
        self.assertEqual(self.missing('#define MY_CHECK(x) CHECK_MINE(x)'), [])

    def test_headers_may_declare_classes_of_protobuf(self):
        code = 'void F(google::protobuf::Message* message);'
        declaration = 'namespace google::protobuf {\nclass Message;\n}\n'
        service = '#include <google/protobuf/service.h>\n'
        self.assertEqual(len(self.missing(declaration + service + code)), 1)
        for declared in (declaration, service):
            self.assertEqual(
                list(check_includes.check('rpc/x.h', declared + code)), [])
        self.assertEqual(len(list(check_includes.check('rpc/x.h', code))), 1)
        for header in '"a/b.pb.h"', '<google/protobuf/message.h>':
            self.assertEqual(
                self.missing('#include %s\n%s' % (header, code)), [])

    def test_a_header_has_one_spelling(self):
        files = [('a.cc', '#include <x.h>\n'), ('b.cc', '#include "x.h"\n'),
                 ('c.cc', '#include "x.h"\n#include <y.h>\n')]
        found = list(check_includes.check_spellings(files))
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith('a.cc: includes x.h '), found)
        self.assertEqual(list(check_includes.check_spellings(files[1:])), [])

    def test_neither_comments_nor_texts_count(self):
        self.assertEqual(
            self.missing('// As std::mutex does.\nf("std::mutex \\" x");'), [])

    def test_some_headers_bring_others(self):
        self.assertEqual(
            self.missing('#include <string>\nstd::string_view v;'), [])
        self.assertEqual(
            len(self.missing('#include <string_view>\nstd::string v;')), 1)


class CheckCyclesTest(unittest.TestCase):

    @staticmethod
    def check(includes):
        """`includes`: {file: the headers that it includes}."""
        return list(check_cycles.check({
            path: ''.join('#include "flare/%s"\n' % header
                          for header in headers)
            for path, headers in includes.items()}))

    def test_a_unit_is_a_header_with_its_source(self):
        files = {'fiber/a.h': [], 'fiber/b.h': [],
                 'fiber/a.cc': ['fiber/a.h', 'fiber/b.h'],
                 'fiber/b.cc': ['fiber/b.h']}
        self.assertEqual(self.check(files), [])
        files['fiber/b.cc'] = ['fiber/b.h', 'fiber/a.h']
        self.assertEqual(self.check(files), [
            'a cycle of 2 units (fiber/a, fiber/b): fiber/a.cc includes '
            'fiber/b.h; fiber/b.cc includes fiber/a.h'])

    def test_a_header_of_the_top_folder_belongs_to_its_source_below(self):
        files = {'fiber/a.h': ['fiber/sync/b.h'], 'fiber/sync/b.h': [],
                 'fiber/sync/a.cc': ['fiber/a.h'], 'fiber/sync/b.cc': []}
        self.assertEqual(self.check(files), [])
        files['fiber/sync/b.cc'] = ['fiber/a.h']
        self.assertIn('a cycle of 2 units (fiber/sync/a, fiber/sync/b)',
                      self.check(files)[0])

    def test_long_cycles_are_told_by_their_shortest_way(self):
        found = self.check({'base/a.h': ['base/b.h'], 'base/b.h': ['base/c.h'],
                            'base/c.h': ['base/a.h', 'base/b.h']})
        self.assertEqual(found, [
            'a cycle of 3 units (base/a, base/b, base/c): base/b.h includes '
            'base/c.h; base/c.h includes base/b.h'])

    def test_folders_form_no_cycle_either(self):
        files = {'fiber/stack/a.h': ['fiber/sync/b.h'], 'fiber/sync/b.h': [],
                 'fiber/sync/c.h': ['fiber/stack/d.h'], 'fiber/stack/d.h': []}
        found = self.check(files)
        self.assertEqual(len(found), 1)
        self.assertIn('a cycle of 2 folders (fiber/stack, fiber/sync)',
                      found[0])

    def test_units_that_share_one_below_form_no_cycle(self):
        self.assertEqual(
            self.check({'io/a.h': ['io/b.h', 'io/c.h'], 'io/b.h': ['io/d.h'],
                        'io/c.h': ['io/d.h'], 'io/d.h': []}), [])

    def test_includes_of_other_libraries_are_for_check_layers(self):
        self.assertEqual(self.check({'rpc/a.h': ['io/b.h'],
                                     'io/b.h': ['rpc/a.h']}), [])


class CheckLayersTest(unittest.TestCase):

    FILES = {'base/buffer.h', 'fiber/task.h', 'io/fd.h', 'rpc/server.h',
             'rpc/start/init.h', 'rpc/start/init/on_init.h'}

    def complaints(self, path, *includes):
        text = ''.join('#include "%s"\n' % header for header in includes)
        return list(check_layers.check_source(
            path, text, self.FILES.__contains__))

    def test_own_and_lower_layers_may_be_included(self):
        self.assertEqual(
            self.complaints('rpc/x.cc', 'flare/rpc/server.h', 'flare/io/fd.h',
                            'flare/fiber/task.h', 'flare/base/buffer.h'), [])
        self.assertEqual(self.complaints('example/x.cc', 'flare/rpc/server.h'),
                         [])

    def test_higher_layers_may_not(self):
        for path, header in [('base/x.cc', 'flare/fiber/task.h'),
                             ('fiber/x.h', 'flare/io/fd.h'),
                             ('fiber/x_test.cc', 'flare/rpc/server.h'),
                             ('io/x.cc', 'flare/init.h')]:
            complaints = self.complaints(path, header)
            self.assertEqual(len(complaints), 1, path)
            self.assertTrue(complaints[0].startswith(path + ':1: '))

    def test_short_paths_are_known(self):
        self.assertEqual(self.complaints('example/x.cc', 'flare/init.h',
                                         'flare/init/on_init.h'), [])

    def test_missing_headers_are_found(self):
        self.assertIn('does not exist',
                      self.complaints('rpc/x.cc', 'flare/io/gone.h')[0])

    def test_paths_in_the_tree_are_refused(self):
        self.assertIn('should be "flare/base/buffer.h"',
                      self.complaints('rpc/x.cc', 'base/buffer.h')[0])
        self.assertEqual(self.complaints('rpc/x.cc', 'rpc/meta.pb.h'), [])
        self.assertEqual(self.complaints('example/x.cc', 'example/y.h'), [])

    def test_build_files_obey_as_well(self):
        check = check_layers.check_build_file
        self.assertEqual(len(list(check('fiber/BUILD.bazel', '"//io"'))), 1)
        self.assertEqual(len(list(check('base/BUILD.bazel', '"//rpc:x"'))), 1)
        self.assertEqual(list(check('io/BUILD.bazel', '"//fiber", "//base"')),
                         [])

    def test_the_core_names_no_protocol(self):
        def lines(path, text):
            return [complaint.split(':')[1]
                    for complaint in check_layers.check_core(path, text)]
        text = 'class Call;\n// As in HTTP.\nBoltTicket ticket;\n'
        for path in ('rpc/server/server_call.cc', 'rpc/client/route.h',
                     'rpc/stream/call_stream.h', 'rpc/protocol.h',
                     'rpc/server_protocol.h', 'rpc/client_protocol.cc'):
            self.assertEqual(lines(path, text), ['2', '3'], path)
            self.assertEqual(lines(path, 'the first protocol'), [], path)
        for path in ('rpc/server/server_http_test.cc', 'rpc/http/http_call.h',
                     'rpc/wire/flare_protocol.cc', 'rpc/server.h',
                     'rpc/protocol_registry.h', 'docs/calls.md'):
            self.assertEqual(lines(path, text), [], path)

    def test_private_paths_are_found(self):
        check = check_layers.check_private_paths
        for text in ('see /' + 'home/me/x', '"/' + 'root/x"'):
            self.assertEqual(len(list(check('x', text))), 1, text)
        for text in ('/usr/include', 'a/' + 'home/me', '$HOME/x', '/tmp/x'):
            self.assertEqual(list(check('x', text)), [], text)


class CheckOrderingsTest(unittest.TestCase):

    def scan(self, *texts):
        tags = check_orderings.Tags()
        for number, text in enumerate(texts):
            check_orderings.scan('io/file%d.cc' % number, text, tags)
        return tags

    def test_order_without_tag_is_found(self):
        for order in ('memory_order_acquire', 'memory_order::release',
                      'memory_order_acq_rel', 'memory_order_seq_cst'):
            tags = self.scan('\n\nx.load(std::%s);\n' % order)
            self.assertEqual(len(tags.problems), 1, order)
            self.assertTrue(tags.problems[0].startswith('io/file0.cc:3: '))

    def test_relaxed_needs_none(self):
        self.assertEqual(
            self.scan('x.load(std::memory_order_relaxed);').problems, [])

    def test_tag_may_stand_above_or_beside(self):
        for text in ('// pairs with the release in F [X1]\n'
                     'x.load(std::memory_order_acquire);',
                     'x.load(std::memory_order_acquire);  // [X1]'):
            self.assertEqual(self.scan(text).problems, [])

    def test_tag_far_above_does_not_count(self):
        text = '// [X1]\n' + '\n' * 20 + 'x.load(std::memory_order_acquire);'
        self.assertEqual(len(self.scan(text).problems), 1)

    def test_brackets_in_code_are_no_tags(self):
        self.assertEqual(
            len(self.scan('a[X1].load(std::memory_order_acquire);').problems),
            1)

    def test_order_named_in_a_comment_needs_no_tag(self):
        self.assertEqual(self.scan('// like memory_order_acquire').problems,
                         [])

    def test_lonely_tag_is_found(self):
        tags = self.scan('// see [X1]\n')
        self.assertEqual(len(list(check_orderings.check_partners(tags))), 1)
        tags = self.scan('// see [X1]\n', '// and [X1]\n')
        self.assertEqual(list(check_orderings.check_partners(tags)), [])

    def test_defined_tag_is_not_lonely(self):
        tags = self.scan('//  [X1] Only the owner\n//       writes it.\n\n')
        self.assertEqual(list(check_orderings.check_partners(tags)), [])
        self.assertEqual(tags.rules['X1'],
                         ('io/file0.cc', 'Only the owner writes it.'))

    def test_rule_may_go_without_brackets(self):
        tags = self.scan('// Rules:\n//  X1  One,\n//      and more.\n'
                         '//  X2  Two.\nint x;  // [X1]\n')
        self.assertEqual(tags.rules['X1'][1], 'One, and more.')
        self.assertEqual(tags.rules['X2'][1], 'Two.')
        self.assertEqual(self.scan('// C4 is an explosive.\n').rules, {})

    def test_rule_ends_where_the_next_begins(self):
        tags = self.scan('// [X1] One.\n// [X2] Two.\nint x;\n// no part\n')
        self.assertEqual(tags.rules['X1'][1], 'One.')
        self.assertEqual(tags.rules['X2'][1], 'Two.')

    def test_two_rules_of_one_name_are_found(self):
        tags = self.scan('// [X1] One.\n', '// [X1] Two.\n')
        self.assertEqual(len(tags.problems), 1)

    def test_two_rules_of_one_name_in_two_layers_are_found(self):
        tags = self.scan('// [X1] One.\n')
        check_orderings.scan('rpc/file.cc', '// [X1] Other.\n', tags)
        self.assertEqual(len(tags.problems), 1)

    def test_partners_are_in_one_layer(self):
        tags = self.scan()
        check_orderings.scan('rpc/other.cc', '// see [X2]\n', tags)
        check_orderings.scan('io/other.cc', '// see [X2]\n', tags)
        self.assertEqual(len(list(check_orderings.check_partners(tags))), 2)

    def test_list_is_ordered_by_number(self):
        tags = self.scan('// [X10] Ten.\n// [X2] Two.\n')
        text = check_orderings.make_list(tags)
        self.assertLess(text.index('X2'), text.index('X10'))


class CheckDocsTest(unittest.TestCase):

    def test_missing_files_are_found(self):
        check = check_docs.check_paths
        self.assertEqual(
            len(list(check('x.md', 'a\nsee `tools/no_such_file.cc`'))), 1)
        self.assertEqual(list(check('x.md', '`tools/sources.py` is')), [])

    def test_other_code_is_left_alone(self):
        text = ('`flare/rpc/server.h` `x.flare.pb.h` `a/b` `--x=a/b.c`\n'
                '```\n`tools/no_such_file.cc`\n```\n')
        self.assertEqual(list(check_docs.check_paths('x.md', text)), [])

    def test_missing_names_are_found(self):
        path = 'tools/checks_test.py'
        pattern = check_docs.PATH
        self.assertIsNone(pattern.match('tools/x.cc and more'))
        match = pattern.match('fiber/scheduler/worker.cc: Worker::Next, Steal')
        self.assertEqual(match.groups(),
                         ('fiber/scheduler/worker.cc', 'Worker::Next, Steal'))
        self.assertEqual(list(check_docs.check_paths('x.md', path)), [])

    def test_headers_are_as_users_include_them(self):
        def check(header, names):
            row = '| what | `flare/%s` | %s |\n' % (header, names)
            return list(check_docs.check_headers('x.md', row))
        self.assertEqual(check('init.h', '`Start`'), [])
        self.assertEqual(check('init/on_init.h', '`FLARE_ON_INIT`'), [])
        self.assertEqual(check('rpc/server.h', '`flare::Server`, `x.h`'), [])
        self.assertEqual(len(check('rpc/start/init.h', '`Begin`')), 1)
        self.assertEqual(len(check('rpc/gone.h', '`Server`')), 1)
        self.assertEqual(len(check('rpc/server.h', '`Server`, `Gone`')), 1)

    def test_dead_links_are_found(self):
        check = check_docs.check_links
        self.assertEqual(len(list(check('tools/x.md', '[a](gone.md)'))), 1)
        self.assertEqual(
            list(check('tools/x.md', '[a](sources.py#x) [b](https://x.y/z)')),
            [])

    def test_long_examples_are_found(self):
        row = '| a task | `example/a.cc` | [page](page.md) |\n'
        for lines, problems in ((120, 0), (121, 1)):
            with unittest.mock.patch.object(check_docs.sources, 'read',
                                            return_value='\n' * lines):
                found = list(check_docs.check_examples('x.md', row))
            self.assertEqual(len(found), problems)

    def test_pages_that_nobody_finds(self):
        def check(readme, menu):
            return list(check_docs.check_listed(
                ['docs/x.md', 'docs/decisions/0001-y.md', 'README.md'],
                readme, menu))
        self.assertEqual(check('[x](docs/x.md)', '  - X: x.md\n'), [])
        self.assertEqual(check('', '  - X: x.md\n'),
                         ['README.md: the documents lack docs/x.md'])
        self.assertEqual(check('[x](docs/x.md)', '  - X: xx.md\n'),
                         ['mkdocs.yml: the menu lacks docs/x.md'])

    def test_counts_words_of_users_and_of_internals(self):
        pages = {'README.md': 'Two [words](docs/x.md)\n```\nno words\n```\n',
                 'docs/calls.md': '| one |', 'docs/tables/x.md': '| 12 | us |',
                 'docs/decisions/0001-y.md': 'Why, and why not.'}
        self.assertEqual(check_docs.count_words(pages), (3, 4))
        self.assertEqual(len(list(check_docs.check_words(pages))), 1)
        pages['docs/faq.md'] = 'Now there are more.'
        self.assertEqual(list(check_docs.check_words(pages)), [])

    def test_quotes_must_be_word_for_word(self):
        quote = '<!-- from: tools/sources.py -->\n```py\n%s```\n'
        check = check_docs.check_quotes
        self.assertEqual(list(check('x.md', quote % 'import os\n')), [])
        for language in ('py', 'c++'):
            other = quote.replace('```py', '```' + language)
            self.assertEqual(
                len(list(check('x.md', other % 'import so\n'))), 1)
        self.assertEqual(len(list(check(
            'x.md', quote.replace('sources', 'gone') % 'a\n'))), 1)

    def test_code_without_a_source_is_found(self):
        def check(text):
            return len(list(check_docs.check_code('x.md', text)))
        code = '```cpp\nint x;\n```\n'
        self.assertEqual(check('a\n\n' + code), 1)
        self.assertEqual(check('<!-- from: a/b.cc -->\n' + code), 0)
        self.assertEqual(check('<!-- from: a/b.cc, shorter -->\n' + code), 1)
        self.assertEqual(check('<!-- not compiled: it fails -->\n' + code), 0)
        self.assertEqual(check('```\nls\n```\n'), 0)

    def test_flags_become_a_table(self):
        table = check_docs.make_flag_tables(
            '// --- Workers ---\n'
            'DEFINE_int32(flare_a, 1 << 2, "One "\n    "\\"two\\".");\n'
            'DEFINE_string(\n    flare_b,\n    "", "B|C");\n')
        self.assertIn('## Workers', table)
        self.assertIn('| `--flare_a` | `1 << 2` | One "two". |', table)
        self.assertIn('| `--flare_b` | `""` | B\\|C |', table)


class CheckCMakeTest(unittest.TestCase):

    QUERY = """<query version="2">
      <rule class="cc_library" name="//a:a">
        <list name="srcs"><label value="//a:one.cc"/>
          <label value="//a:a.as_one_source.cc"/></list>
        <list name="textual_hdrs"><label value="//a:two.cc"/></list>
        <list name="hdrs"><label value="//a:one.h"/></list>
      </rule>
      <rule class="cc_binary" name="//a:program">
        <list name="srcs"><label value="//a:main.cc"/></list>
      </rule>
      <rule class="cc_library" name="//a:testing">
        <boolean name="testonly" value="true"/>
        <list name="srcs"><label value="//a:fixture.cc"/></list>
      </rule></query>"""

    def setUp(self):
        self.rules = check_cmake.bazel_rules(self.QUERY)

    def compare(self, targets, labels=('//a:a', '//a:program')):
        return list(check_cmake.compare(
            self.rules, targets, {'flare_a': list(labels)}))

    def test_reads_a_query(self):
        rule = self.rules['//a:a']
        self.assertEqual(rule['sources'], {'a/one.cc', 'a/two.cc'})
        self.assertEqual(rule['headers'], {'a/one.h'})
        self.assertTrue(self.rules['//a:testing']['testonly'])

    def test_the_same_files(self):
        self.assertEqual(self.compare(
            {'flare_a': {'a/one.cc', 'a/two.cc', 'a/main.cc'}}), [])

    def test_a_file_too_few_and_one_too_many(self):
        problems = self.compare({'flare_a': {'a/one.cc', 'a/two.cc', 'a/x.cc'}})
        self.assertEqual(len(problems), 2, problems)
        self.assertIn('a/main.cc: missing', problems[0])
        self.assertIn('a/x.cc: in flare_a', problems[1])

    def test_targets_that_one_lacks(self):
        self.assertEqual(self.compare({}, ['//a:a', '//a:b', '//a:program']), [
            '//a:b: Bazel has no such target',
            'flare_a: CMake has no such target'])
        self.assertEqual(self.compare(
            {'flare_a': {'a/one.cc', 'a/two.cc'}}, ['//a:a']),
            ['//a:program: CMake has no such target'])

    def test_compiler_options(self):
        bazel = 'COPTS = [\n    "-Wall",\n    "-fsafe",\n] + x\n] + [\n]\n'
        cmake = 'set(FLARE_COMPILE_OPTIONS -Wall)\nset(FLARE_FIBER_OPTIONS %s)\n'
        self.assertEqual(list(check_cmake.compare_options(
            bazel, cmake % '-fsafe')), [])
        self.assertEqual(list(check_cmake.compare_options(
            bazel, cmake % '-fother')),
            ['-fother: only in cmake/FlareTargets.cmake',
             '-fsafe: only in tools/bazel/flare.bzl'])

    def test_versions(self):
        header = 'inline constexpr char kVersion[] = "1.2.3";'
        self.assertEqual(list(check_cmake.compare_versions(header, {
            'a': 'module(\n    name = "flare",\n    version = "1.2.3",',
            'b': 'bazel_dep(name = "flare", version = "1.2.3")'})), [])
        self.assertEqual(list(check_cmake.compare_versions(header, {
            'c': 'module(name = "flare", version = "1.2.30")'})),
            ["c: flare isn't of version 1.2.3 there"])

    def test_where_headers_are_installed(self):
        for path, installed in (('rpc/start/init.h', 'flare/init.h'),
                                ('rpc/start/init/on_init.h', 'flare/init/on_init.h'),
                                ('io/fd.h', 'flare/io/fd.h')):
            self.assertEqual(check_cmake.installed_path(path), installed)


class IncludeListTest(unittest.TestCase):

    PATHS = ['base/a.h', 'rpc/start/init.h', 'rpc/start/init/on.h', 'rpc/testing/b.h',
             'example/rpc/c.h']
    LISTED = ('exports_files([\n'
              '    "flare/base/a.h",\n'
              '    "flare/init.h",\n'
              '    "flare/init/on.h",\n'
              '    "flare/rpc/rpc_options.proto",\n'
              '    "flare/rpc/testing/b.h",\n'
              '])\n')

    def check(self, text):
        return list(check_includes.check_list(self.PATHS, text))

    def test_all_headers_of_libraries(self):
        self.assertEqual(self.check(self.LISTED), [])

    def test_a_header_that_is_missing_and_one_that_is_gone(self):
        problems = self.check(self.LISTED.replace('base/a.h', 'base/old.h'))
        self.assertEqual(len(problems), 2, problems)
        self.assertIn('lacks "flare/base/a.h"', problems[0])
        self.assertIn('should not list "flare/base/old.h"', problems[1])


class ProgramDocsTest(unittest.TestCase):

    HELP = """flare-x: does -it-; see docs

    -port (Port to listen on; 0: one that is
      free (any)) type: int32 default: 5567
    -quiet (.) type: bool
      default: false
    -name (A.) type: string default: ""

--helpfull shows all.
"""
    FLAGS = [
        ('port', 'Port to listen on; 0: one that is free (any)', 'int32',
         '5567'),
        ('quiet', '.', 'bool', 'false'),
        ('name', 'A.', 'string', '""')]

    def test_reads_flags(self):
        self.assertEqual(program_docs.flags_of(self.HELP), self.FLAGS)

    def test_man_page(self):
        page = program_docs.man_page('flare-x', '1.2.3', 'does -it-',
                                     self.FLAGS)
        self.assertIn('.TH FLARE-X 1 "" "flare 1.2.3"', page)
        self.assertIn('flare\\-x \\- does \\-it\\-', page)
        self.assertIn('free (any). Default: 5567.', page)
        self.assertIn('\n\\&. Default: false.', page)

    def test_man_page_has_what_precedes_the_flags(self):
        self.assertEqual(program_docs.description(self.HELP), [])
        more = program_docs.description(self.HELP.replace(
            '; see docs\n', '; see docs\n\n  flare-x --quiet \\\n'))
        self.assertEqual(more[:4], ['.SH DESCRIPTION', '.nf', '',
                                    '  flare\\-x \\-\\-quiet \\e'])
        page = program_docs.man_page('flare-x', '1.2.3', 'does', self.FLAGS,
                                     more)
        self.assertLess(page.index('.SH DESCRIPTION'),
                        page.index('.SH FLAGS'))

    def test_completion(self):
        text = program_docs.completion('flare-x', self.FLAGS)
        result = subprocess.run(
            ['bash', '-c', text + """
compopt() { :; }
COMP_WORDS=(flare-x --n) COMP_CWORD=1
_flare_x
echo "${COMPREPLY[@]}" """], check=True, stdout=subprocess.PIPE, text=True)
        self.assertEqual(result.stdout, '--name=\n')


class SetupTest(unittest.TestCase):

    def set_up(self, states, apt_get='exit 1'):
        """The output of tools/setup where dpkg-query says this of all
        packages."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (('dpkg', 'echo amd64'), ('apt-get', apt_get),
                               ('dpkg-query', f"printf '{states}'"),
                               ('id', 'echo 0'),
                               ('update-rc.d', 'echo "$@"')):
                path = os.path.join(folder, name)
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(f'#!/bin/sh\n{text}\n')
                os.chmod(path, 0o755)
            setup = os.path.join(os.path.dirname(__file__), 'setup')
            return subprocess.run(
                ['bash', setup], capture_output=True, check=False, text=True,
                env={**os.environ, 'PATH': folder + ':' + os.environ['PATH']})

    def test_packages_of_several_architectures(self):
        for states in ('amd64 installed\\n', 'all installed\\n',
                       'amd64 installed\\ni386 installed\\n',
                       'i386 config-files\\namd64 installed\\n'):
            result = self.set_up(states)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn('everything is installed', result.stderr)

    def test_packages_that_are_missing(self):
        for states in ('', 'i386 installed\\n', 'amd64 config-files\\n',
                       'amd64 not-installed\\ni386 installed\\n'):
            result = self.set_up(states)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn('apt-get update failed', result.stderr)

    def test_services_do_not_start_with_the_machine(self):
        result = self.set_up('', 'exit 0')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('redis-server disable\nmemcached disable\netcd disable\n', result.stderr)


class SiteHeadersTest(unittest.TestCase):

    def page(self, code):
        return site_headers.page('flare/x.h', code).split('---\n', 2)[2]

    def test_shows_declarations_under_the_names_of_classes(self):
        self.assertEqual(self.page(
            '// Two gates.\n\n#ifndef X_H_\n#define X_H_\n\n'
            '#include "y.h"\n\nnamespace flare {\n\nclass Other;\n\n'
            '// Opens.\nclass Gate {\n public:\n  // Opens it.\n\n'
            '  void Open();\n};\n\nint Count();\n\n'
            '}  // namespace flare\n\n#endif\n'),
                         '# flare/x.h\n\n```cpp\n// Two gates.\n```\n\n'
                         '## Gate\n\n```cpp\n// Opens.\nclass Gate {\n'
                         ' public:\n  // Opens it.\n\n  void Open();\n};\n\n'
                         'int Count();\n```\n')

    def test_leaves_private_members_out(self):
        page = self.page(
            'class A {\n public:\n  class B {\n   private:\n    int b_;\n'
            '  };\n  int c;\n\n private:\n  friend class D;\n  int d_;\n'
            ' public:\n  int e;\n private:\n  struct F {\n   public:\n'
            '    int f;\n  };\n};\n\nint g;\n')
        for name in ('class A', 'class B', 'int c;', 'int e;', 'int g;'):
            self.assertIn(name, page)
        for name in ('b_', 'd_', 'friend', 'int f;', 'struct F'):
            self.assertNotIn(name, page)


class CheckProseTest(unittest.TestCase):

    def find(self, text):
        """The words that are found, without places and cures."""
        return [line.split('"')[1] for line in check_prose.find('x.md', text)]

    def test_finds_each_pattern(self):
        for text, words in (
                ('It runs what is queued.', 'what is'),
                ('The end of what began.', 'of what'),
                ('A text for who writes.', 'for who'),
                ('Whoever took it waits.', 'Whoever'),
                ('It ends. Who writes waits.', 'Who'),
                ('| x | What comes late |', 'What'),
                ('It ends. Of these one runs.', 'Of'),
                ('Not the worker, but the watch.', 'Not'),
                ('The same, but later.', 'The same'),
                ('The list stands in a file.', 'stands'),
                ('They run by turns.', 'by turns'),
                ('All but for one.', 'but for'),
                ('The rules as above.', 'as above'),
                ('It can be had.', 'be had'),
                ('A restless machine.', 'restless'),
                ('It does as Close() does.', 'does as Close('),
                ('A client of ours.', 'of ours'),
                ('The message is to be sent.', 'is to be'),
                ('It must not block, nor throw.', 'must not block, nor')):
            with self.subTest(text):
                self.assertEqual(self.find(text), [words])

    def test_names_line_and_cure(self):
        self.assertEqual(
            list(check_prose.find('x.md', 'One.\n\nIt runs by turns.\n')),
            ['x.md:3: "by turns": interleaved'])

    def test_passes_over_plain_english(self):
        for text in ('Clients who leave lose their calls.',
                     'A server stands still.', 'It stands for a name.',
                     'Not every call is measured.',
                     '## What is a fiber?\n', 'Who may call it? Everybody.',
                     '**What is there?** A list.',
                     'The same worker is asked again.', 'Not thread-safe.',
                     'Offers, whose prices differ.'):
            with self.subTest(text):
                self.assertEqual(self.find(text), [])

    def test_passes_over_code_and_quotations(self):
        self.assertEqual(
            self.find('A.\n\n```cpp\n// Of what is by turns.\n```\n\n'
                      'The log says "what is it by turns", `by turns`, '
                      'see [it](by/turns.md).<!-- by turns -->\n'), [])

    def test_reads_comments_of_cpp(self):
        self.assertEqual(
            check_prose.comments(
                'x.cc', '// One.\nint a;  // Two.\nauto b = "tcp://c";  // \'d\'\n'
                'char e = \'"\';  //   - f\nauto g = R"(// h\n// i)";\n///j\n'),
            "One.\nTwo.\n'd'\n  - f\n\n\nj\n")

    def test_reads_comments_of_c(self):
        self.assertEqual(check_prose.comments(
            'x.pml', '/* One.\n *\n * Two. */\nf(/*g=*/1);\n'),
            'One.\n\nTwo.\ng=\n')

    def test_reads_comments_and_docstrings_of_python(self):
        self.assertEqual(
            check_prose.comments(
                'x.py', '#!/usr/bin/env python3\n"""One.\n\n  Two.\n"""\n'
                'def f():\n  """Three."""\n  g("# not")  # Four.\n'
                'H = """Text."""\n'),
            '!/usr/bin/env python3\nOne.\n\nTwo.\n\n\nThree.\nFour.\n\n')

    def test_reads_comments_of_shell(self):
        self.assertEqual(
            check_prose.comments('x.sh', '#!/bin/bash\n# One.\necho "#"\n  # Two.\n'),
            '\nOne.\n\nTwo.\n')
        self.assertEqual(check_prose.comments('x.lua', '-- One.\nf()\n'),
                         'One.\n\n')

    def test_reads_sources_and_pages(self):
        for path in ('README.md', 'docs/x.md', 'docs/decisions/0001-x.md',
                     'base/x.h', 'base/x_test.cc', 'rpc/x.proto', 'a/BUILD.bazel',
                     'tools/check_prose', 'x.py', 'tools/bazel/x.bzl'):
            with self.subTest(path):
                self.assertTrue(check_prose.is_checked(path))
        for path in ('CHANGELOG.md', 'docs/tables/x.md', 'LICENSE', 'x.json'):
            with self.subTest(path):
                self.assertFalse(check_prose.is_checked(path))


class HelpTest(unittest.TestCase):

    def test_each_check_tells_of_itself(self):
        here = os.path.dirname(os.path.abspath(__file__))
        checks = [name for name in sorted(os.listdir(here))
                  if name.startswith('check_')]
        self.assertGreater(len(checks), 8)
        for name in checks:
            for flag in '--help', '-h':
                with self.subTest(name, flag=flag):
                    run = subprocess.run([os.path.join(here, name), flag],
                                         check=False, capture_output=True,
                                         text=True)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    with open(os.path.join(here, name),
                              encoding='utf-8') as file:
                        first = re.sub(r'^(# |""")', '',
                                       file.read().split('\n')[1])
                    self.assertIn(first, run.stdout)


if __name__ == '__main__':
    unittest_xml.main()
