// The text generated for one service, as declarations (for the header) and
// definitions (for the source file).

#ifndef TOOLS_PROTOC_PLUGIN_SERVICE_CODE_H_
#define TOOLS_PROTOC_PLUGIN_SERVICE_CODE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/printer.h>

#include <string>
#include <vector>

namespace flare::protoc_plugin {

// Prints the declarations of one service's classes:
//
//   X, X_Stub     only if protoc itself does not generate them, that is unless
//                 the file says `option cc_generic_services = true`
//   BasicX, X_BasicStub
//                 other names of these
//   SyncX         the base of services written in blocking style
//   AsyncX        the base of services whose methods return futures
//   X_SyncStub    calls that block
//   X_AsyncStub   calls that return futures
void PrintDeclarations(const google::protobuf::ServiceDescriptor& service,
                       google::protobuf::io::Printer* out);

// The names of these classes, without X itself where that is the name of the
// service: in C++ a keyword is called X_.
std::vector<std::string> AddedClasses(
    const google::protobuf::ServiceDescriptor& service);

// The name of a method in C++: its own, with "_" behind it where that can't be
// used.
std::string NameInCpp(const google::protobuf::MethodDescriptor& method);

// Prints the definitions for PrintDeclarations().
void PrintDefinitions(const google::protobuf::ServiceDescriptor& service,
                      google::protobuf::io::Printer* out);

}  // namespace flare::protoc_plugin

#endif  // TOOLS_PROTOC_PLUGIN_SERVICE_CODE_H_
