"""Compiles by the toolchain's options, outside of Bazel's own rules."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# The parts of a rule that calls compile(), with its `ctx`.
COMPILE_RULE = struct(
    attrs = {
        "copts": attr.string_list(),
        "compiler": attr.string(
            doc = "A path, by default that of the toolchain's compiler. Clang " +
                  "takes gcc's options but one, which is left out.",
        ),
        "_cc_toolchain": attr.label(
            default = "@bazel_tools//tools/cpp:current_cc_toolchain",
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def compile(ctx, source, output, context, headers = [], options = [], requirements = {}):
    """Compiles one C++ source, with the options of the command line and ctx's.

    Args:
      ctx: of a rule with the parts of COMPILE_RULE.
      source: the file.
      output: the file.
      context: a compilation context, of the included headers.
      headers: files that are included beside those of `context`.
      options: more compiler options.
      requirements: of the action, for Bazel.
    """
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    cpp = ctx.fragments.cpp
    copts = [
        o.replace("$(BINDIR)", ctx.bin_dir.path).replace("$(GENDIR)", ctx.genfiles_dir.path)
        for o in ctx.attr.copts
    ]
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = source.path,
        output_file = output.path,
        quote_include_directories = context.quote_includes,
        include_directories = context.includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        user_compile_flags = cpp.copts + cpp.cxxopts + copts + options,
    )
    action = ACTION_NAMES.cpp_compile
    command = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = action,
        variables = variables,
    )
    if ctx.attr.compiler:
        command = [o for o in command if o != "-fno-canonical-system-headers"]
    ctx.actions.run(
        executable = ctx.attr.compiler or cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = action,
        ),
        arguments = command,
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        inputs = depset([source] + headers, transitive = [
            toolchain.all_files,
            context.headers,
        ]),
        outputs = [output],
        execution_requirements = requirements,
        mnemonic = "CppCompile",
        progress_message = "Compiling " + output.short_path,
    )

def _objects_impl(ctx):
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    headers = [file for file in ctx.files.srcs if file.extension == "h"]
    outputs = []
    for source in ctx.files.srcs:
        if source in headers:
            continue
        output = ctx.actions.declare_file("%s/%s.o" % (
            ctx.label.name,
            source.basename,
        ))
        compile(ctx, source, output, context, headers)
        outputs.append(output)
    return [DefaultInfo(files = depset(outputs))]

objects = rule(
    implementation = _objects_impl,
    attrs = dict(
        COMPILE_RULE.attrs,
        srcs = attr.label_list(allow_files = [".cc", ".h"], mandatory = True),
        deps = attr.label_list(providers = [CcInfo]),
    ),
    fragments = COMPILE_RULE.fragments,
    toolchains = COMPILE_RULE.toolchains,
    doc = "Objects of C++ sources, to be `srcs` of a program.",
)
