#include "flare/rpc/generic_stub.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/generic_method.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"

namespace flare {

namespace {

// Names go into paths and headers of some protocols: no other bytes may be
// there.
bool IsMethodName(std::string_view name) {
  constexpr std::size_t kMostBytes = 1024;
  constexpr std::string_view kInParts =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  if (name.size() > kMostBytes) return false;
  std::size_t parts = 0;
  for (std::size_t begin = 0;; ++parts) {
    const std::size_t end =
        std::min(name.find_first_not_of(kInParts, begin), name.size());
    if (end == begin) return false;
    if (end == name.size()) return parts != 0;
    if (name[end] != '.') return false;
    begin = end + 1;
  }
}

}  // namespace

Expected<Buffer> GenericStub::Call(std::string_view method, Buffer request,
                                   RpcClientController* controller) const {
  RpcClientController own;
  if (controller == nullptr) controller = &own;
  if (!IsMethodName(method)) {
    controller->SetFailed(rpc::STATUS_INVALID_METHOD_NAME,
                          "\"" + OneLine(std::string(method)) +
                              "\" isn't the name of a method: it must be like "
                              "package.Service.Method");
    return Status(controller->ErrorCode(), controller->ErrorText());
  }
  controller->BeginGeneric(method, std::move(request));
  channel()->CallMethod(rpc::GenericMethod(), controller, nullptr, nullptr,
                        nullptr);
  Buffer response = controller->EndGeneric();
  if (!controller->Failed()) return response;
  return Status::Lenient(controller->ErrorCode(), controller->ErrorText());
}

}  // namespace flare
