#include "tools/protoc_plugin/generator.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/io/printer.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tools/protoc_plugin/service_code.h"

namespace flare::protoc_plugin {
namespace {

namespace pb = google::protobuf;

// "file.proto:12: ", or "file.proto: " when the line is not known.
template <class Descriptor>
std::string Where(const Descriptor& what) {
  std::string where(what.file()->name());
  pb::SourceLocation location;
  if (what.GetSourceLocation(&location)) {
    where += ":" + std::to_string(location.start_line + 1);
  }
  return where + ": ";
}

// The reason why no code can be generated for this method, or "".
std::string FindObstacle(const pb::MethodDescriptor& method) {
  if (!method.client_streaming() && !method.server_streaming()) return "";
  return Where(method) + "Streaming method " + std::string(method.full_name()) +
         " is not supported: flare generates code for unary methods only. "
         "Remove the word `stream` from its declaration, or move the method "
         "to a .proto file that is not given to this plugin.";
}

// That two methods of this service would have one name.
std::string FindNameRepeated(const pb::ServiceDescriptor& service) {
  std::map<std::string, std::string> taken;
  for (int i = 0; i != service.method_count(); ++i) {
    const pb::MethodDescriptor& method = *service.method(i);
    const std::string name = NameInCpp(method);
    const auto [other, added] = taken.emplace(name, method.name());
    if (added) continue;
    return Where(method) + "Method " + std::string(method.full_name()) +
           " would have the name " + name + " in C++, as method " +
           other->second + " has. Rename one of the two.";
  }
  return "";
}

// The same for a service.
std::string FindObstacle(const pb::ServiceDescriptor& service) {
  if (service.file()->options().optimize_for() ==
      pb::FileOptions::LITE_RUNTIME) {
    return Where(service) + "Service " + std::string(service.full_name()) +
           " is in a file with `optimize_for = LITE_RUNTIME`, which leaves "
           "out the descriptors that calls are dispatched by. Remove that "
           "option.";
  }
  for (int i = 0; i != service.method_count(); ++i) {
    auto obstacle = FindObstacle(*service.method(i));
    if (!obstacle.empty()) return obstacle;
  }
  return FindNameRepeated(service);
}

// That a class generated for this service would have the name of another: of
// one for a service in `taken`, where all its own are added, or of something
// else in the package.
std::string FindNameTaken(const pb::ServiceDescriptor& service,
                          std::map<std::string, std::string>* taken) {
  const std::string scope(service.full_name().substr(
      0, service.full_name().size() - service.name().size()));
  for (const std::string& name : AddedClasses(service)) {
    const auto [other, added] = taken->emplace(name, service.name());
    const bool declared = service.file()->pool()->FindFileContainingSymbol(
                              scope + name) != nullptr;
    if (added && !declared) continue;
    return Where(service) + "Class " + name + ", generated for service " +
           std::string(service.full_name()) + ", would have the name of " +
           (declared ? scope + name + ", which is declared"
                     : "one generated for service " + other->second) +
           ". Rename one of the two.";
  }
  return "";
}

// "dir/x-y.proto" as the name of an include guard, in which other names don't
// result: "dir_2fx_2dy_2eproto", after what all begin with.
std::string MakeGuard(const pb::FileDescriptor& file) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string guard = "FLARE_GENERATED_";
  for (unsigned char c : file.name()) {
    if (isalnum(c)) {
      guard += static_cast<char>(c);
    } else {
      guard += {'_', kHex[c >> 4], kHex[c & 15]};
    }
  }
  return guard + "_";
}

// "a.b" -> {"a", "b"}: protoc makes each part of a package a namespace.
std::vector<std::string> NamespacesOf(const pb::FileDescriptor& file) {
  std::vector<std::string> names;
  std::istringstream package{std::string(file.package())};
  for (std::string name; std::getline(package, name, '.');) {
    names.push_back(name);
  }
  return names;
}

// Opens the file's namespaces for as long as it lives.
class NamespaceScope {
 public:
  NamespaceScope(const pb::FileDescriptor& file, pb::io::Printer* out)
      : names_(NamespacesOf(file)), out_(out) {
    for (const auto& name : names_) {
      out_->Print("namespace $name$ {\n", "name", name);
    }
  }

  ~NamespaceScope() {
    out_->Print("\n");
    for (auto it = names_.rbegin(); it != names_.rend(); ++it) {
      out_->Print("}  // namespace $name$\n", "name", *it);
    }
  }

 private:
  std::vector<std::string> names_;
  pb::io::Printer* out_;
};

void PrintBanner(const pb::FileDescriptor& file, pb::io::Printer* out) {
  out->Print(
      "// Generated by protoc-gen-flare-rpc from $file$. Do not edit.\n\n",
      "file", file.name());
}

void PrintHeader(const pb::FileDescriptor& file, const std::string& base,
                 pb::io::Printer* out) {
  PrintBanner(file, out);
  out->Print("#ifndef $guard$\n#define $guard$\n\n", "guard", MakeGuard(file));
  if (file.service_count() != 0) {
    out->Print(
        "#include <google/protobuf/service.h>\n\n"
        "#include \"flare/rpc/stub.h\"\n");
  }
  out->Print("#include \"$base$.pb.h\"\n\n", "base", base);
  if (file.service_count() != 0) {
    NamespaceScope scope(file, out);
    for (int i = 0; i != file.service_count(); ++i) {
      PrintDeclarations(*file.service(i), out);
    }
  }
  out->Print("\n#endif  // $guard$\n", "guard", MakeGuard(file));
}

void PrintSource(const pb::FileDescriptor& file, const std::string& base,
                 pb::io::Printer* out) {
  PrintBanner(file, out);
  out->Print("#include \"$base$.flare.pb.h\"\n", "base", base);
  if (file.service_count() == 0) return;
  out->Print("\n#include <google/protobuf/descriptor.h>\n\n");
  NamespaceScope scope(file, out);
  for (int i = 0; i != file.service_count(); ++i) {
    PrintDefinitions(*file.service(i), out);
  }
}

}  // namespace

bool Generator::Generate(const pb::FileDescriptor* file,
                         const std::string& parameter,
                         pb::compiler::GeneratorContext* context,
                         std::string* error) const {
  if (!parameter.empty()) {
    *error = "Unknown parameter `" + parameter +
             "`: protoc-gen-flare-rpc takes none.";
    return false;
  }
  std::map<std::string, std::string> taken;
  for (int i = 0; i != file->service_count(); ++i) {
    *error = FindObstacle(*file->service(i));
    if (error->empty()) *error = FindNameTaken(*file->service(i), &taken);
    if (!error->empty()) return false;
  }
  std::string base = pb::compiler::StripProto(std::string(file->name()));
  using Print =
      void (*)(const pb::FileDescriptor&, const std::string&, pb::io::Printer*);
  auto write = [&](const char* extension, Print print) {
    std::unique_ptr<pb::io::ZeroCopyOutputStream> stream(
        context->Open(base + extension));
    pb::io::Printer printer(stream.get(), '$');
    print(*file, base, &printer);
  };
  write(".flare.pb.h", PrintHeader);
  write(".flare.pb.cc", PrintSource);
  return true;
}

std::uint64_t Generator::GetSupportedFeatures() const {
  return FEATURE_PROTO3_OPTIONAL;
}

}  // namespace flare::protoc_plugin
