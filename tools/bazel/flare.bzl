"""Shared settings of this project's C++ targets."""

load(":compile.bzl", "objects")
load(":precompiled.bzl", "include_precompiled")

# Where this file's repository lies: "", or "external/flare" for those who
# build it as part of another workspace.
_ROOT = Label("//:BUILD.bazel").workspace_root

def _ours(label):
    """`label` as seen from this file, wherever the macro is called."""
    return str(Label(label))

COPTS = [
    "-Wall",
    "-Wextra",
] + ([] if _ROOT else ["-Werror"]) + [
    "-Wno-sign-compare",
    "-fno-omit-frame-pointer",
    # A frame larger than a page touches each, so that it can't step over the
    # guard of a fiber's stack.
    "-fstack-clash-protection",
    # Those who depend on a library find its headers by -isystem (//include).
    # Its own code finds them here before, so that compilers warn of them.
    "-iquote",
    (_ROOT + "/" if _ROOT else "") + "include",
]

def _as_one_source(name, srcs):
    """One C++ source that includes `srcs`, which are then textual headers.

    Most of a file's compile time goes into its headers: ten files in one piece
    take little longer than two. Names in their anonymous namespaces must
    differ.
    """
    native.genrule(
        name = name + "_as_one_source",
        srcs = srcs,
        outs = [name + ".as_one_source.cc"],
        # Those of another repository are found from its top.
        cmd = "printf '#include \"%s\"\\n' $(SRCS) | " +
              "sed 's,\"external/[^/]*/,\",' > $@",
    )
    return ":%s.as_one_source.cc" % name

def flare_cc_part(name, srcs = [], copts = [], deps = [], **kwargs):
    """A library that is part of a program or of a larger library.

    Where //:as_one_source holds it is compiled in one piece: in all builds but
    those of --config=files.
    """
    parts = [src for src in srcs if src.endswith(".cc")]
    assembly = [src for src in srcs if src.endswith(".S")]
    if assembly:  # Can't include precompiled headers.
        native.cc_library(
            name = name + "_assembly",
            srcs = assembly,
            visibility = ["//visibility:private"],
        )
        deps = deps + [":%s_assembly" % name]
    if len(parts) > 1:
        one_source = [_as_one_source(name, parts)]
        textual = parts
    else:
        one_source = parts
        textual = []
    others = [src for src in srcs if src not in parts + assembly]
    native.cc_library(
        name = name,
        srcs = others + select({
            _ours("//:as_one_source"): one_source,
            "//conditions:default": parts,
        }),
        textual_hdrs = select({
            _ours("//:as_one_source"): textual,
            "//conditions:default": [],
        }),
        copts = COPTS + copts + _part_copts(),
        deps = deps + _part_deps(),
        **kwargs
    )

# The packages that are optimised in plain builds, too: all tests run through
# them, and ThreadSanitizer keeps its stack of calls over a switch of fibers only
# where that is optimised.
_INNER = ["base", "fiber", "io"]

def _is_inner():
    return native.package_name() in _INNER

# Under sanitizers, whose builds are by clang. Warnings are the ordinary build's
# business, except for those about contracts of locks
# (base/thread_annotations.h), which gcc doesn't know.
_QUIET = ["-Wno-everything"]
_LOCKS = _QUIET + ["-Werror=thread-safety"]

# The ordinary build has no precompiled headers: from them gcc makes other code,
# and warns of overruns in moves of std::string that aren't there.
def _part_copts():
    optimised = include_precompiled("headers")
    return select({
        _ours("//:plain"): _LOCKS + (
            optimised if _is_inner() else ["-O0"] + include_precompiled("headers_O0")
        ),
        _ours("//:sanitized"): _QUIET + optimised,
        "//conditions:default": [],
    })

def _part_deps():
    optimised = [_ours("//tools/bazel:headers")]
    return select({
        _ours("//:plain"): optimised if _is_inner() else [_ours("//tools/bazel:headers_O0")],
        _ours("//:sanitized"): optimised,
        "//conditions:default": [],
    })

def on_include_path(files):
    """Labels of `files` of this package as "flare/<package>/x.h"."""
    folder = _ours("//include:flare/" + native.package_name())
    return ["%s/%s" % (folder, file) for file in files]

def flare_cc_library(name, hdrs = [], deps = [], **kwargs):
    """A library whose headers are included as "flare/<package>/x.h".

    //include has to list them: tools/check_includes --write does that.
    """
    flare_cc_part(
        name = name,
        hdrs = on_include_path(hdrs),
        deps = deps + [_ours("//include")],
        **kwargs
    )

# The packages that have much of their code in headers.
_TEMPLATES = ["base", "fiber"]

# Under sanitizers. UBSan's checks take a third of compiling. The code under test
# keeps them, and so do tests of templates.
def _plain_copts(headers = "headers"):
    return _QUIET + ["-O0"] + include_precompiled(headers + "_O0") + (
        [] if native.package_name() in _TEMPLATES else ["-fno-sanitize=undefined"]
    )

# Options of code around flare's own, programs and protoc's output: as tests are
# compiled where those are plain, and as libraries are elsewhere.
def _outer_copts():
    return select({
        _ours("//:plain"): _plain_copts(),
        _ours("//:sanitized"): _QUIET + include_precompiled("headers"),
        "//conditions:default": [],
    })

def _outer_deps():
    return select({
        _ours("//:plain"): [_ours("//tools/bazel:headers_O0")],
        _ours("//:sanitized"): [_ours("//tools/bazel:headers")],
        "//conditions:default": [],
    })

# Warnings that gcc gives by the same options.
_CLANG_WARNINGS = [
    "-Wimplicit-fallthrough",
    "-Wno-delete-non-abstract-non-virtual-dtor",
    "-Wno-unused-lambda-capture",
]

def _by_clang(name, srcs, copts, deps, headers = "headers", optimisation = "O0", **kwargs):
    """Objects for builds by gcc of code whose speed nobody measures.

    Clang takes half of gcc's time.
    """
    precompiled = "%s_by_clang_%s" % (headers, optimisation)
    objects(
        name = name + "_by_clang",
        srcs = srcs,
        compiler = "/usr/bin/clang",
        copts = COPTS + copts + _CLANG_WARNINGS + ["-" + optimisation] +
                include_precompiled(precompiled),
        deps = deps + [_ours("//tools/bazel:" + precompiled)],
        tags = ["manual"],
        visibility = ["//visibility:private"],
        **kwargs
    )
    return ":%s_by_clang" % name

# In half of gold's time. It doesn't know gcc's objects of --config=release.
def _test_linkopts():
    return select({
        _ours("//:release"): [],
        "//conditions:default": ["-fuse-ld=lld"],
    })

def flare_cc_test(
        name,
        srcs = None,
        deps = [],
        copts = [],
        size = "small",
        apart = False,
        headers = "headers",
        optimised = False,
        lines = False,
        **kwargs):
    """A GoogleTest test, by default of the source file <name>.cc.

    Several files are compiled as one, unless they are to stay apart since they
    use names twice.

    Args:
      name: the test.
      srcs: its files.
      deps: libraries.
      copts: compiler options.
      size: as for cc_test.
      apart: True compiles each file by itself.
      headers: those in //tools/bazel that are precompiled for tests that aren't
        optimised; "rpc_headers" for those with //rpc:testing among `deps`.
      optimised: True for code in headers that optimisers may break, such as that of
        threads that meet without a lock. It takes twice as long as all the rest
        of compiling, and other tests call code that is compiled elsewhere.
      lines: True if backtraces have to name the test's own lines. Else they do so
        in builds for debugging (--compilation_mode=dbg).
      **kwargs: as for cc_test.
    """
    srcs = srcs or [name + ".cc"]
    if len(srcs) > 1 and not apart:
        native.cc_library(
            name = name + "_parts",
            testonly = True,
            textual_hdrs = srcs,
        )
        srcs = [_as_one_source(name, srcs)]
        deps = deps + [":%s_parts" % name]
    # The rest takes a seventh of compiling. Reports of failures have a line
    # without it.
    copts = COPTS + copts + ["-fno-function-sections", "-fno-data-sections"] + (
        [] if lines else select({
            _ours("//:dbg"): [],
            "//conditions:default": ["-g0"],
        })
    )
    deps = deps + [_ours("@system_libs//:gtest_main")]
    by_clang = _by_clang(
        name,
        srcs,
        copts,
        deps,
        headers,
        "O1" if optimised else "O0",
        testonly = True,
    )
    native.cc_test(
        name = name,
        srcs = select({
            _ours("//:plain"): srcs,
            "//conditions:default": [by_clang],
        }),
        # Optimising instrumented tests takes longer than running them.
        copts = copts + _plain_copts(headers),
        linkopts = _test_linkopts(),
        deps = deps + select({
            _ours("//:plain"): [_ours("//tools/bazel:%s_O0" % headers)],
            "//conditions:default": [],
        }),
        size = size,
        **kwargs
    )

def flare_cc_tests(
        tests,
        groups = {},
        one_thread = [],
        apart = [],
        exclusive = [],
        optimised = [],
        lines = [],
        no_sanitizer = [],
        shards = {},
        **kwargs):
    """One binary for each group of tests, and one for each test in no group.

    A group is compiled in one piece, and linked once. Tests that need a process
    of their own (their own allocator, flags, or global state) are in no group.

    Args:
      tests: the files, x_test.cc or folder/x_test.cc. No two have one name.
      groups: for each binary x_test the tests in it, without "_test.cc".
      one_thread: binaries, without "_test", in which there is nothing for
        ThreadSanitizer to see: tests of a single thread.
      apart: those whose files use names twice.
      exclusive: those beside which nothing else may run.
      optimised: those for which flare_cc_test is told so.
      lines: likewise.
      no_sanitizer: those that measure times, which say nothing under one.
      shards: for those that wait for long, the number of processes that share
        their cases.
      **kwargs: as for flare_cc_test.
    """
    files = {test.split("/")[-1][:-len("_test.cc")]: test for test in tests}
    if len(files) != len(tests):
        fail("two tests of one name")
    grouped = [stem for members in groups.values() for stem in members]
    for stem in grouped:
        if stem not in files:
            fail("no test %s_test.cc" % stem)
    binaries = dict(groups)
    binaries.update({stem: [stem] for stem in files if stem not in grouped})
    for name, members in binaries.items():
        flare_cc_test(
            name = name + "_test",
            srcs = [files[member] for member in members],
            tags = (["one_thread"] if name in one_thread else []) +
                   (["exclusive"] if name in exclusive else []) +
                   (["no_sanitizer"] if name in no_sanitizer else []),
            apart = name in apart,
            optimised = name in optimised,
            lines = name in lines,
            shard_count = shards.get(name),
            **kwargs
        )

def flare_cc_binary(name, srcs = [], deps = [], copts = [], example = False, **kwargs):
    """A program, with jemalloc as its allocator.

    Args:
      name: the program.
      srcs: its files.
      deps: libraries.
      copts: compiler options.
      example: True if it only shows how something is done. It isn't optimised.
      **kwargs: as for cc_binary.
    """
    if example:
        srcs = select({
            _ours("//:sanitized"): srcs,
            _ours("//:release"): srcs,
            "//conditions:default": [_by_clang(name, srcs, copts, deps)],
        })
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = COPTS + copts + _outer_copts(),
        deps = deps + _outer_deps() + select({
            _ours("//:sanitized"): [],
            "//conditions:default": [_ours("@system_libs//:jemalloc")],
        }),
        **kwargs
    )

def _protos_of(label):
    """The label of the .proto files behind a flare_proto_library."""
    if ":" in label:
        return label + "_protos"
    return label + ":" + label.split("/")[-1] + "_protos"

def _root_of(repository):
    """Where @repository lies; "." for the workspace that is built."""
    name = repository.replace("@", "")
    return "external/" + name if name else "."

def _root_of_dep(label):
    """Where the repository of a caller's label lies."""
    if hasattr(native, "package_relative_label"):  # Since Bazel 6.
        return native.package_relative_label(label).workspace_root or "."
    return _root_of(label.split("//")[0])

def _proto_paths(deps):
    """Options that tell protoc where imports start.

    In the repository of the caller, those of its `deps`, and flare's include/.
    """
    roots = [_root_of(native.repository_name())]
    for dep in deps:
        if dep.startswith("@"):
            roots.append(_root_of_dep(dep))
    options = []
    for path in roots + [(_ROOT + "/" if _ROOT else "") + "include"]:
        option = "--proto_path=" + path
        if option not in options:
            options.append(option)
    return " ".join(options)

def generated_for_examples(name, srcs, hdrs, deps, includes = [], **kwargs):
    """Sources of a library of generated code that nobody measures.

    Args:
      name: the library.
      srcs: its files.
      hdrs: its headers.
      deps: libraries.
      includes: as for cc_library.
      **kwargs: visibility and the like.
    """
    native.cc_library(
        name = name + "_headers",
        hdrs = hdrs,
        includes = includes,
        deps = deps,
        **kwargs
    )
    return select({
        _ours("//:sanitized"): srcs,
        "//conditions:default": [_by_clang(
            name,
            srcs,
            ["-Wno-error"],
            deps + [":%s_headers" % name],
            testonly = kwargs.get("testonly"),
        )],
    })

def flare_proto_library(
        name,
        srcs,
        deps = [],
        services = True,
        flare_prefix = False,
        example = False,
        **kwargs):
    """Messages, services and stubs of .proto files, as one C++ library.

    For dir/x.proto it provides "dir/x.pb.h" (by protoc) and "dir/x.flare.pb.h"
    (by //tools/protoc_plugin). Imports in .proto files are written from the
    top of the workspace, too. For those of flare itself that users import,
    such as "flare/rpc/rpc_options.proto", `deps` have their target, such as
    "//rpc:rpc_options_proto".

    Args:
      name: the C++ library.
      srcs: the .proto files.
      deps: the flare_proto_library targets whose files they import.
      services: False leaves "x.flare.pb.h", and with it //rpc, out.
      flare_prefix: True for files that are imported as "flare/dir/x.proto" and
        give "flare/dir/x.pb.h": the paths that flare's headers have.
      example: True if it is of tests or examples only. It isn't optimised.
      **kwargs: visibility and the like.
    """
    if flare_prefix:
        # Protoc names outputs as it is told inputs: by the path below include/.
        inputs = ["flare/%s/%s" % (native.package_name(), src) for src in srcs]
        stems = ["generated/" + file[:-len(".proto")] for file in inputs]
        out = "$(RULEDIR)/generated"
        srcs = on_include_path(srcs)
    else:
        inputs = ["$(execpath %s)" % src for src in srcs]
        stems = [src[:-len(".proto")] for src in srcs]
        out = "$(GENDIR)/" + _root_of(native.repository_name())
    extensions = [".pb", ".flare.pb"] if services else [".pb"]
    headers = [s + e + ".h" for s in stems for e in extensions]
    sources = [s + e + ".cc" for s in stems for e in extensions]
    plugin = _ours("//tools/protoc_plugin:protoc-gen-flare-rpc")
    command = ["protoc", _proto_paths(deps), "--cpp_out=" + out]
    if services:
        command += [
            "--plugin=protoc-gen-flare-rpc=$(execpath %s)" % plugin,
            "--flare-rpc_out=" + out,
        ]
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [_protos_of(dep) for dep in deps],
        **kwargs
    )
    native.genrule(
        name = name + "_generate",
        srcs = srcs + [_protos_of(dep) for dep in deps],
        outs = headers + sources,
        # Imported files are inputs as well, but are not generated again.
        cmd = " ".join(command + inputs),
        tools = [plugin] if services else [],
        **kwargs
    )
    includes = ["generated"] if flare_prefix else []
    deps = deps + [_ours("@system_libs//:protobuf")] + (
        [_ours("//rpc")] if services else []
    )
    if example:
        sources = generated_for_examples(name, sources, headers, deps, includes, **kwargs)
    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        includes = includes,
        # Protoc's part of the code is not ours to keep free of warnings.
        copts = [option for option in COPTS if option != "-Werror"] +
                _outer_copts(),
        deps = deps + _outer_deps(),
        # Services are found by name (reflection, stubs): the linker may not
        # leave out files that only register themselves.
        alwayslink = True,
        **kwargs
    )
