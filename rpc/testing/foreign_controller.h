// A controller that isn't ours, as those have who use google::protobuf::Service
// and its stubs with other libraries, too.
//
//   ForeignController controller;
//   stub.Call(&controller, &request, &response, nullptr);
//   EXPECT_EQ(controller.ErrorText(), "not today");
#ifndef FLARE_RPC_TESTING_FOREIGN_CONTROLLER_H_
#define FLARE_RPC_TESTING_FOREIGN_CONTROLLER_H_

#include <google/protobuf/service.h>

#include <string>

namespace flare::rpc::testing {

// Remembers why the call failed. Not thread-safe.
class ForeignController : public google::protobuf::RpcController {
 public:
  void Reset() override {}
  bool Failed() const override { return !text_.empty(); }
  std::string ErrorText() const override { return text_; }
  void StartCancel() override {}
  void SetFailed(const std::string& reason) override { text_ = reason; }
  bool IsCanceled() const override { return false; }
  void NotifyOnCancel(google::protobuf::Closure*) override {}

 private:
  std::string text_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_FOREIGN_CONTROLLER_H_
