"""Fibers for gdb, in live processes and in core files.

    (gdb) source tools/gdb_fibers.py
    (gdb) info fibers            all fibers: their functions and waits
    (gdb) info fibers -bt        ... with their backtraces
    (gdb) fiber bt 3             the backtrace of fiber 3 in that list
    (gdb) fiber 3                select it: bt, up, down, info locals, ... show it
    (gdb) fiber off              back to the threads

Needs the program's symbols, but no debug information: it reads the layout of
fibers from the program (fiber/diagnostics/debug_layout.h). Works on x86-64 and
AArch64. Nothing is written into the process, no register is changed.

While a fiber is selected, frame #0 (with those of functions inlined there) is
that of the selected thread, and the fiber's frames follow it, as if it had been
called by them. Numbers of fibers
hold until the program runs on. Fibers that run are shown with their threads:
use `thread` to look at them.
"""

import re
import struct
import time

import gdb
from gdb.unwinder import Unwinder

LAYOUT_VERSION = 1
LAYOUT_FIELDS = (
    'version', 'regions', 'carrier_bytes', 'resume_function', 'resume_run',
    'resume_carrier', 'stack_pointer', 'suspended', 'suspended_at_ns',
    'fiber_id', 'entry', 'name', 'reason_what', 'reason_object')

# Where a suspended context keeps registers (fiber/context_<isa>.S): offsets
# from the saved stack pointer. 'size' is the part of the stack that resuming it
# takes off.
CONTEXTS = {
    'i386:x86-64': {
        'pc': ('rip', 56), 'sp': 'rsp', 'size': 64,
        'saved': {'rbp': 48, 'rbx': 40, 'r12': 32, 'r13': 24, 'r14': 16,
                  'r15': 8}},
    'aarch64': {
        'pc': ('pc', 8), 'sp': 'sp', 'size': 176,
        'saved': dict([('x29', 0), ('x30', 8)] +
                      [('x%d' % (19 + i), 16 + 8 * i) for i in range(10)])},
}

# Frames of these mean that a worker's thread is between two tasks.
BETWEEN_TASKS = ('flare::fiber::Worker::Next',
                 'flare::fiber::SchedulingGroup::Park',
                 'flare::fiber::SchedulingGroup::Retire')


def read_words(address, count):
    memory = gdb.selected_inferior().read_memory(address, 8 * count)
    return struct.unpack('<%dQ' % count, memory.tobytes())


def read_word(address):
    return read_words(address, 1)[0]


def read_text(address, limit=64):
    """The C string there; '' for a null pointer or unreadable memory."""
    text = b''
    while address != 0 and len(text) < limit:
        try:
            byte = gdb.selected_inferior().read_memory(
                address + len(text), 1).tobytes()
        except gdb.MemoryError:
            break
        if byte == b'\0':
            break
        text += byte
    return text.decode('utf-8', 'replace')


def symbol_at(address):
    """'name' of the function that starts at or holds the address."""
    text = gdb.execute('info symbol %#x' % address, to_string=True)
    if text.startswith('No symbol'):
        return '%#x' % address
    return text.split(' in section ')[0].split(' + ')[0].strip()


def context_layout():
    name = gdb.selected_inferior().architecture().name()
    if name not in CONTEXTS:
        raise gdb.GdbError('fibers are known on x86-64 and AArch64 only, '
                           'not on %s' % name)
    return CONTEXTS[name]


def variable_at(name):
    """Its address, or None."""
    try:
        return int(gdb.parse_and_eval('(unsigned long) &%s' % name))
    except gdb.error:
        pass
    # Optimised across files, it may have debug information without an address,
    # which hides the linker's knowledge.
    place = re.compile(r' (0x[0-9a-f]+) %s ' % re.escape(name))
    for objfile in gdb.objfiles():
        found = place.search(gdb.execute(
            'maintenance print msymbols -objfile "%s"' % objfile.filename,
            to_string=True))
        if found:
            return int(found.group(1), 16)
    return None


class Layout:
    """The program's layout by fiber/diagnostics/debug_layout.h."""

    def __init__(self):
        address = variable_at('flare_debug_layout')
        if address is None:
            raise gdb.GdbError('this program has no flare_debug_layout: it '
                               "doesn't use flare, or has no symbols")
        if not gdb.selected_inferior().threads():
            raise gdb.GdbError('there is no process: run the program, attach '
                               'to it, or name its core file')
        words = read_words(address, len(LAYOUT_FIELDS))
        for field, word in zip(LAYOUT_FIELDS, words):
            setattr(self, field, word)
        if self.version != LAYOUT_VERSION:
            raise gdb.GdbError('the program is of another version than this '
                               'script: layout %d, not %d' %
                               (self.version, LAYOUT_VERSION))

    def stack_regions(self):
        """(lowest address, bytes of a stack, number of stacks) of each."""
        region = read_word(self.regions)
        while region != 0:
            region, low, size, count, _ = read_words(region, 5)
            yield low, size, count

    def carriers(self):
        """Addresses of all carriers."""
        for low, size, count in self.stack_regions():
            for i in range(count):
                place = low + (i + 1) * size - self.carrier_bytes
                if self.is_carrier(place):
                    yield place

    def carrier_of(self, stack_pointer):
        """Address of the carrier of that stack, or None."""
        for low, size, count in self.stack_regions():
            if low <= stack_pointer < low + size * count:
                end = stack_pointer - (stack_pointer - low) % size + size
                place = end - self.carrier_bytes
                return place if self.is_carrier(place) else None
        return None

    def is_carrier(self, place):
        try:
            return (read_word(place + self.resume_run) ==
                    self.resume_function and
                    read_word(place + self.resume_carrier) == place)
        except gdb.MemoryError:  # Never used, or not in the core file.
            return False

    def is_suspended(self, place):
        byte = gdb.selected_inferior().read_memory(place + self.suspended, 1)
        return byte.tobytes() != b'\0'


class Fiber:
    """A carrier's description of its fiber."""

    def __init__(self, layout, place, thread=None):
        self.place = place
        self.thread = thread  # If it runs.
        self.id = read_word(place + layout.fiber_id)
        self.entry = symbol_at(read_word(place + layout.entry))
        self.name = read_text(read_word(place + layout.name))
        self.stack_pointer = read_word(place + layout.stack_pointer)
        self.waits_for = read_text(read_word(place + layout.reason_what))
        self.waits_on = read_word(place + layout.reason_object)
        self.suspended_at_ns = read_word(place + layout.suspended_at_ns)

    def describe(self):
        if self.thread is not None:
            state = 'running on thread %d' % self.thread.num
        else:
            state = 'waits: %s' % (self.waits_for or '?')
            if self.waits_on != 0:
                state += ' %#x' % self.waits_on
            age = self.age()
            if age is not None:
                state += ' for %.3f s' % age
        name = '"%s"' % self.name if self.name else '(no name)'
        fiber_id = ' id %d' % self.id if self.id != 0 else ''
        return '%s%s on %#x, %s, entry %s' % (name, fiber_id, self.place,
                                              state, self.entry)

    def age(self):
        """Seconds since it was suspended; None in a core file."""
        connection = gdb.selected_inferior().connection
        if connection is None or connection.type != 'native':
            return None
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return max(0, now - self.suspended_at_ns) * 1e-9


def runs_task(frame):
    """Is the thread with this newest frame in a task, not between two?"""
    while frame is not None:
        name = frame.name() or ''
        if name.startswith(BETWEEN_TASKS):
            return False
        if name.startswith('flare::fiber::Worker::Loop'):
            return True
        frame = frame.older()
    return True


def inlined_frames(frame):
    """How many frames of inlined functions precede the function's own."""
    count = 0
    while frame is not None and frame.type() == gdb.INLINE_FRAME:
        count += 1
        frame = frame.older()
    return count


def list_fibers():
    """Running ones first, then the suspended ones."""
    layout = Layout()
    sp_name = context_layout()['sp']
    running = []
    selected = gdb.selected_thread()
    try:
        for thread in gdb.selected_inferior().threads():
            thread.switch()
            frame = gdb.newest_frame()
            UNWINDER.levels[thread.num] = inlined_frames(frame)
            place = layout.carrier_of(int(frame.read_register(sp_name)))
            if place is not None and runs_task(frame):
                running.append(Fiber(layout, place, thread))
    finally:
        if selected is not None:
            selected.switch()
    running_places = {fiber.place for fiber in running}
    suspended = [Fiber(layout, place) for place in layout.carriers()
                 if place not in running_places and layout.is_suspended(place)]
    return running + suspended


class FiberUnwinder(Unwinder):
    """While a fiber is selected, says that the newest frame was called by it."""

    def __init__(self):
        super().__init__('flare-fibers')
        self.fiber = None
        # By thread: the level of the newest frame that isn't of an inlined
        # function; gdb unwinds the others itself. As list_fibers() saw it: one
        # can't look while gdb is unwinding.
        self.levels = {}

    def select(self, fiber):
        if fiber is not None and fiber.stack_pointer == 0:
            raise gdb.error('it is being switched to just now')
        self.fiber = fiber
        self.enabled = fiber is not None
        gdb.invalidate_cached_frames()

    def level(self):
        return self.levels.get(gdb.selected_thread().num, 0)

    def __call__(self, pending):
        if self.fiber is None or pending.level() != self.level():
            return None
        layout = context_layout()
        pc_name, pc_offset = layout['pc']
        sp_name = layout['sp']
        at = self.fiber.stack_pointer

        # In place of the thread's own stack pointer: gdb takes a stack to be
        # broken if a frame has a lower address than the one that it called,
        # unless debug information says that it was inlined.
        class FrameId:
            sp = gdb.Value(at).cast(pending.read_register(sp_name).type)
            pc = pending.read_register(pc_name)

        info = pending.create_unwind_info(FrameId())

        def save(register, value):
            kind = pending.read_register(register).type
            info.add_saved_register(register, gdb.Value(value).cast(kind))

        save(pc_name, read_word(at + pc_offset))
        save(sp_name, at + layout['size'])
        for register, offset in layout['saved'].items():
            save(register, read_word(at + offset))
        return info


UNWINDER = FiberUnwinder()
UNWINDER.enabled = False
gdb.unwinder.register_unwinder(None, UNWINDER, replace=True)


def on_continue(_):
    if UNWINDER.fiber is not None:
        UNWINDER.select(None)


gdb.events.cont.connect(on_continue)


def format_frame(number, frame):
    text = '#%-3d %#018x in %s ()' % (number, frame.pc(), frame.name() or '??')
    place = frame.find_sal()
    if place is not None and place.symtab is not None:
        text += ' at %s:%d' % (place.symtab.filename, place.line)
    return text


def backtrace(fiber):
    """Its frames as text, innermost first."""
    before = UNWINDER.fiber
    selected = gdb.selected_thread()
    lines = []
    try:
        if fiber.thread is not None:
            UNWINDER.select(None)
            fiber.thread.switch()
            frame = gdb.newest_frame()
        else:
            UNWINDER.select(fiber)
            frame = gdb.newest_frame()
            for _ in range(UNWINDER.level() + 1):
                frame = frame.older()
        while frame is not None and frame.is_valid():
            if frame.name() == 'flare_context_entry':
                break
            lines.append(format_frame(len(lines), frame))
            frame = frame.older()
    except gdb.error as error:
        lines.append('(the stack ends here: %s)' % error)
    finally:
        if selected is not None:
            selected.switch()
        UNWINDER.select(before)
    return lines


def get_fiber(text):
    fibers = list_fibers()
    if not text.isdecimal() or not 0 < int(text) <= len(fibers):
        raise gdb.GdbError('no fiber %s: `info fibers` lists 1 to %d' %
                           (text, len(fibers)))
    return fibers[int(text) - 1]


class InfoFibers(gdb.Command):
    """List all fibers: name, wait, function.
info fibers [-bt]
With -bt, the backtraces as well."""

    def __init__(self):
        super().__init__('info fibers', gdb.COMMAND_STATUS)

    def invoke(self, argument, _):
        if argument not in ('', '-bt'):
            raise gdb.GdbError('usage: info fibers [-bt]')
        fibers = list_fibers()
        for number, fiber in enumerate(fibers, 1):
            print('%-4d %s' % (number, fiber.describe()))
            if argument == '-bt':
                print('\n'.join('     ' + line for line in backtrace(fiber)))
        print('%d fibers, %d of them running' % (
            len(fibers), sum(fiber.thread is not None for fiber in fibers)))


class FiberCommand(gdb.Command):
    """Look at one fiber, by its number in `info fibers`.
fiber N       select it: bt, up, down, ... show its frames after frame 0
fiber bt N    print its backtrace
fiber off     back to the threads"""

    def __init__(self):
        super().__init__('fiber', gdb.COMMAND_STACK)

    def invoke(self, argument, _):
        words = argument.split()
        if words == ['off']:
            UNWINDER.select(None)
        elif len(words) == 2 and 'bt' in words:
            words.remove('bt')
            fiber = get_fiber(words[0])
            print(fiber.describe())
            print('\n'.join(backtrace(fiber)))
        elif len(words) == 1:
            self.select(get_fiber(words[0]))
        else:
            raise gdb.GdbError('usage: fiber N | fiber bt N | fiber off')

    @staticmethod
    def select(fiber):
        print(fiber.describe())
        if fiber.thread is not None:
            UNWINDER.select(None)
            fiber.thread.switch()
            return
        UNWINDER.select(fiber)
        gdb.execute('frame %d' % (UNWINDER.level() + 1))


InfoFibers()
FiberCommand()
