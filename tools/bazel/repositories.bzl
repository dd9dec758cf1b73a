"""The repositories that flare's targets, and Debian's Bazel, look for."""

def flare_repositories(path):
    """To be called in a WORKSPACE.

    Everything comes from the system's packages (see tools/setup): no downloads.
    Debian's Bazel looks for some of these by name; newer Bazel versions bring
    their own.

    Args:
      path: where flare's checkout lies, from the top of the workspace.
    """
    native.local_repository(
        name = "rules_cc",
        path = path + "/tools/bazel/rules_cc",
    )
    native.local_repository(
        name = "rules_java",
        path = "/usr/share/bazel/rules/java",
    )
    native.local_repository(
        name = "rules_proto",
        path = "/usr/share/bazel/rules/proto",
    )
    native.local_repository(
        name = "bazel_skylib",
        path = "/usr/share/bazel/tools/skylib",
    )
    native.new_local_repository(
        name = "remote_coverage_tools",
        build_file_content = """
filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
""",
        path = path + "/tools/bazel/coverage_stub",
    )
    native.new_local_repository(
        name = "system_libs",
        build_file = str(Label("//tools/bazel:system_libs.BUILD")),
        path = "/usr",
    )
