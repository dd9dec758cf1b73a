#include "example/proxy/rpc_routes.h"

#include <google/protobuf/empty.pb.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "example/rpc/descriptor_errors.h"
#include "flare/base/string.h"

namespace example::proxy {
namespace {

using flare::Status;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;

constexpr std::string_view kEverything = "*";

bool IsName(std::string_view text) {
  const auto parts = flare::Split(text, '.', /*keep_empty=*/true);
  return std::all_of(parts.begin(), parts.end(), [](std::string_view part) {
    return !part.empty() &&
           std::isdigit(static_cast<unsigned char>(part.front())) == 0 &&
           std::all_of(part.begin(), part.end(), [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '_';
           });
  });
}

// Empty if there is none.
std::string UriFor(const google::protobuf::MethodDescriptor& method,
                   const std::map<std::string, std::string>& routes) {
  for (const std::string& pattern :
       {std::string(method.full_name()),
        std::string(method.service()->full_name()), std::string(kEverything)}) {
    if (const auto found = routes.find(pattern); found != routes.end()) {
      return found->second;
    }
  }
  return "";
}

Status BadRoute(std::string_view route, const std::string& what) {
  return Status(EINVAL, "route '" + std::string(route) + "': " + what);
}

// Limits that methods have in their .proto files are those of one server, not
// of the sum of calls that pass through here to several; servers keep them.
void ClearMethodOptions(FileDescriptorProto* proto) {
  for (auto& service : *proto->mutable_service()) {
    for (auto& method : *service.mutable_method()) method.clear_options();
  }
}

flare::Expected<const FileDescriptor*, Status> AddFile(
    FileDescriptorProto proto, DescriptorPool* pool) {
  const std::string inconsistent = "the descriptors are inconsistent: ";
  for (const std::string& import : proto.dependency()) {
    if (pool->FindFileByName(import) != nullptr) continue;
    return Status(EINVAL, inconsistent + proto.name() + " imports " + import +
                              ", which isn't there before it; protoc needs "
                              "--include_imports");
  }
  ClearMethodOptions(&proto);
  FirstDescriptorError errors;
  const FileDescriptor* const file =
      pool->BuildFileCollectingErrors(proto, &errors);
  if (file == nullptr) return Status(EINVAL, inconsistent + errors.text());
  return file;
}

// Does it name something that can be routed?
Status CheckPattern(const DescriptorPool& pool, const std::string& pattern) {
  if (pattern == kEverything || pool.FindServiceByName(pattern) != nullptr) {
    return Status();
  }
  const auto* const method = pool.FindMethodByName(pattern);
  if (method == nullptr) {
    return Status(EINVAL, "the descriptors have no such service or method");
  }
  return Status();
}

}  // namespace

flare::Expected<RpcRoutes, Status> ParseRpcRoutes(std::string_view text) {
  RpcRoutes routes;
  std::set<std::string> seen;
  for (std::string_view piece : flare::Split(text, ';')) {
    piece = flare::Trim(piece);
    if (piece.empty()) continue;
    const auto equals = piece.find('=');
    if (equals == std::string_view::npos) {
      return BadRoute(piece, "write pattern=protocol://address");
    }
    const std::string pattern(flare::Trim(piece.substr(0, equals)));
    const std::string uri(flare::Trim(piece.substr(equals + 1)));
    if (pattern != kEverything && !IsName(pattern)) {
      return BadRoute(piece, "'" + pattern +
                                 "' is neither package.Service.Method, nor "
                                 "package.Service, nor *");
    }
    if (uri.find("://") == std::string::npos) {
      return BadRoute(piece, "'" + uri + "' is no protocol://address");
    }
    if (!seen.insert(pattern).second) {
      return BadRoute(piece, "there is another one for " + pattern);
    }
    routes.emplace_back(pattern, uri);
  }
  if (routes.empty()) {
    return Status(EINVAL, "no routes; write pattern=protocol://address");
  }
  return routes;
}

flare::Expected<FileDescriptorSet, Status> ReadDescriptorSet(
    const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int why = errno != 0 ? errno : EIO;
    return Status(why, "can't read " + path + ": " + std::strerror(why));
  }
  FileDescriptorSet set;
  // Partial: a lack of required fields would be logged by protobuf, too.
  if (!set.ParsePartialFromIstream(&file) || set.file_size() == 0 ||
      !set.IsInitialized()) {
    return Status(EINVAL, path +
                              " is no descriptor set; make one with protoc "
                              "--include_imports --descriptor_set_out=" +
                              path + " your.proto");
  }
  return set;
}

flare::Expected<FileDescriptorSet, Status> DeclareOpaqueMethods(
    const RpcRoutes& routes) {
  const google::protobuf::Descriptor* const opaque =
      google::protobuf::Empty::descriptor();
  FileDescriptorSet set;
  opaque->file()->CopyTo(set.add_file());

  // One file for each service, as the package belongs to the file.
  std::map<std::string, FileDescriptorProto*> files;
  for (const auto& [pattern, uri] : routes) {
    const auto method_dot = pattern.rfind('.');
    if (pattern == kEverything || method_dot == std::string::npos) {
      return BadRoute(pattern + "=" + uri,
                      "without descriptors each route must name a method, as "
                      "package.Service.Method");
    }
    const std::string service = pattern.substr(0, method_dot);
    FileDescriptorProto*& file = files[service];
    if (file == nullptr) {
      file = set.add_file();
      file->set_name(service + ".opaque");
      file->set_syntax("proto3");
      file->add_dependency(opaque->file()->name());
      const auto dot = service.rfind('.');
      if (dot != std::string::npos) file->set_package(service.substr(0, dot));
      file->add_service()->set_name(
          dot == std::string::npos ? service : service.substr(dot + 1));
    }
    auto* const method = file->mutable_service(0)->add_method();
    method->set_name(pattern.substr(method_dot + 1));
    method->set_input_type("." + std::string(opaque->full_name()));
    method->set_output_type("." + std::string(opaque->full_name()));
  }
  return set;
}

flare::Expected<RoutedMethods, Status> RoutedMethods::Build(
    const FileDescriptorSet& set, const RpcRoutes& routes) {
  auto pool = std::make_shared<DescriptorPool>();
  RoutedMethods result;
  result.pool_ = pool;
  const std::map<std::string, std::string> by_pattern(routes.begin(),
                                                      routes.end());
  for (const FileDescriptorProto& proto : set.file()) {
    const auto file = AddFile(proto, pool.get());
    if (!file) return file.error();
    for (int i = 0; i != (*file)->service_count(); ++i) {
      const auto* const service = (*file)->service(i);
      Methods methods;
      bool any = false;
      for (int k = 0; k != service->method_count(); ++k) {
        std::string uri = UriFor(*service->method(k), by_pattern);
        any = any || !uri.empty();
        methods.emplace(service->method(k), std::move(uri));
      }
      if (any) result.services_.emplace(service, std::move(methods));
    }
  }
  for (const auto& [pattern, uri] : routes) {
    if (Status status = CheckPattern(*pool, pattern); !status.ok()) {
      return BadRoute(pattern + "=" + uri, status.message());
    }
  }
  if (result.services_.empty()) {
    return Status(EINVAL, "the descriptors have no method that can be routed");
  }
  return result;
}

}  // namespace example::proxy
