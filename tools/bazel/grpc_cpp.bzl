"""Services and stubs of gRPC C++, for programs that are compared with ours."""

load(":flare.bzl", "COPTS", "generated_for_examples")

def grpc_cpp_library(name, src):
    """Messages, services and stubs of a .proto file, as gRPC C++ has them.

    For dir/x.proto it provides "dir/grpc_cpp/x.pb.h" and
    "dir/grpc_cpp/x.grpc.pb.h". The messages are a copy, so that programs need
    nothing of flare.

    Args:
      name: the C++ library.
      src: the .proto file.
    """
    stem = "grpc_cpp/" + src[:-len(".proto")]
    extensions = [".pb", ".grpc.pb"]
    headers = [stem + extension + ".h" for extension in extensions]
    sources = [stem + extension + ".cc" for extension in extensions]
    native.genrule(
        name = name + "_generate",
        srcs = [src],
        outs = headers + sources,
        cmd = " && ".join([
            "cp $< $(RULEDIR)/grpc_cpp/",
            "protoc -I$(GENDIR) --cpp_out=$(GENDIR) --grpc_out=$(GENDIR) " +
            "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) " +
            "$(RULEDIR)/%s.proto" % stem,
        ]),
    )
    deps = [
        "@system_libs//:grpc_cpp",
        "@system_libs//:protobuf",
    ]
    native.cc_library(
        name = name,
        srcs = generated_for_examples(name, sources, headers, deps),
        hdrs = headers,
        # Its warnings are not for us to mend.
        copts = [option for option in COPTS if option != "-Werror"],
        deps = deps,
    )
