"""Shared settings of this project's C++ targets."""

COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-sign-compare",
    "-fno-omit-frame-pointer",
    # A frame larger than a page touches each, so that it can't step over the
    # guard of a fiber's stack.
    "-fstack-clash-protection",
]

def flare_cc_library(name, copts = [], **kwargs):
    """A library whose headers are included as "flare/<package>/x.h"."""
    native.cc_library(
        name = name,
        copts = COPTS + copts,
        include_prefix = "flare/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        **kwargs
    )

def flare_cc_test(name, srcs = None, deps = [], copts = [], size = "small", **kwargs):
    """A GoogleTest test of the source file <name>.cc."""
    native.cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        # Optimising instrumented tests takes longer than running them.
        copts = COPTS + copts + select({
            "//:plain_tests": ["-O0"],
            "//conditions:default": [],
        }),
        deps = deps + ["@system_libs//:gtest_main"],
        size = size,
        **kwargs
    )

def flare_cc_tests(tests, groups = {}, one_thread = [], **kwargs):
    """One binary for each group of tests, and one for each test in no group.

    A test costs little to compile beside what linking a binary with the
    library, and starting it, do, and CI does both in each configuration. Tests
    that need a process of their own (their own allocator, flags, or global
    state) are in no group.

    Args:
      tests: the files, x_test.cc.
      groups: for each binary x_test the tests in it, without "_test.cc".
      one_thread: binaries, without "_test", in which there is nothing for
        ThreadSanitizer to see: tests of what one thread does.
      **kwargs: as for flare_cc_test.
    """
    stems = [test[:-len("_test.cc")] for test in tests]
    grouped = [stem for members in groups.values() for stem in members]
    for stem in grouped:
        if stem not in stems:
            fail("no test %s_test.cc" % stem)
    binaries = dict(groups)
    binaries.update({stem: [stem] for stem in stems if stem not in grouped})
    for name, members in binaries.items():
        flare_cc_test(
            name = name + "_test",
            srcs = [member + "_test.cc" for member in members],
            tags = ["one_thread"] if name in one_thread else [],
            **kwargs
        )

def flare_cc_binary(name, deps = [], copts = [], **kwargs):
    """A program, with jemalloc as its allocator."""
    native.cc_binary(
        name = name,
        copts = COPTS + copts,
        deps = deps + select({
            "//:sanitized": [],
            "//conditions:default": ["@system_libs//:jemalloc"],
        }),
        **kwargs
    )

def _protos_of(label):
    """The label of the .proto files behind a flare_proto_library."""
    if ":" in label:
        return label + "_protos"
    return label + ":" + label.split("/")[-1] + "_protos"

def flare_proto_library(name, srcs, deps = [], services = True, **kwargs):
    """Messages, services and stubs of .proto files, as one C++ library.

    For dir/x.proto it provides "dir/x.pb.h" (by protoc) and "dir/x.flare.pb.h"
    (by //tools/protoc_plugin). Imports in .proto files are written from the
    top of the workspace, too.

    Args:
      name: the C++ library.
      srcs: the .proto files.
      deps: the flare_proto_library targets whose files they import.
      services: False leaves "x.flare.pb.h", and with it //rpc, out.
      **kwargs: visibility and the like.
    """
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [_protos_of(dep) for dep in deps],
        **kwargs
    )
    stems = [src[:-len(".proto")] for src in srcs]
    extensions = [".pb", ".flare.pb"] if services else [".pb"]
    headers = [s + e + ".h" for s in stems for e in extensions]
    sources = [s + e + ".cc" for s in stems for e in extensions]
    plugin = "//tools/protoc_plugin:protoc-gen-flare-rpc"
    command = ["protoc --proto_path=. --cpp_out=$(GENDIR)"]
    if services:
        command += [
            "--plugin=protoc-gen-flare-rpc=$(execpath %s)" % plugin,
            "--flare-rpc_out=$(GENDIR)",
        ]
    native.genrule(
        name = name + "_generate",
        srcs = srcs + [_protos_of(dep) for dep in deps],
        outs = headers + sources,
        # Imported files are inputs as well, but are not generated again.
        cmd = " ".join(command + ["$(execpath %s)" % src for src in srcs]),
        tools = [plugin] if services else [],
        **kwargs
    )
    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        # Protoc's part of the code is not ours to keep free of warnings.
        copts = [option for option in COPTS if option != "-Werror"],
        deps = deps + ["@system_libs//:protobuf"] +
               (["//rpc"] if services else []),
        # Services are found by name (reflection, stubs): the linker may not
        # leave out files that only register themselves.
        alwayslink = True,
        **kwargs
    )
