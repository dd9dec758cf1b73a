// protoc starts this program and talks to it over stdin and stdout.

#include <google/protobuf/compiler/plugin.h>

#include "tools/protoc_plugin/generator.h"

int main(int argc, char** argv) {
  flare::protoc_plugin::Generator generator;
  return google::protobuf::compiler::PluginMain(argc, argv, &generator);
}
