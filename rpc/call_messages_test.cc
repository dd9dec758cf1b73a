#include "flare/rpc/call_messages.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>

#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "flare/base/string.h"
#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc::testing {
namespace {

using google::protobuf::Message;

// One whose method takes and returns what the test wants.
class ServiceOf : public OtherService {
 public:
  explicit ServiceOf(const Message* prototype) : prototype_(prototype) {}

  const Message& GetRequestPrototype(
      const google::protobuf::MethodDescriptor*) const override {
    return *prototype_;
  }
  const Message& GetResponsePrototype(
      const google::protobuf::MethodDescriptor*) const override {
    return *prototype_;
  }

 private:
  const Message* const prototype_;
};

struct MethodOf {
  explicit MethodOf(const Message* prototype)
      : service(prototype),
        method(&service, OtherService::descriptor()->method(0)) {}

  ServiceOf service;
  Method method;
};

class CallMessagesTest : public ::testing::Test {
 protected:
  // Serves a call whose messages get `body`.
  void Serve(const std::string& body) {
    messages_.Acquire(test_.method);
    EXPECT_EQ(response()->body(), "");
    for (TestRequest* const message : {request(), response()}) {
      message->set_body(body);
    }
    messages_.Release(body.size(), body.size());
  }

  TestRequest* request() {
    return dynamic_cast<TestRequest*>(messages_.request());
  }
  TestRequest* response() {
    return dynamic_cast<TestRequest*>(messages_.response());
  }

  MethodOf test_{&TestRequest::default_instance()};
  CallMessages messages_;
};

TEST_F(CallMessagesTest, NoneOutsideOfCalls) {
  EXPECT_EQ(messages_.request(), nullptr);
  messages_.Release(0, 0);
  Serve("x");
  EXPECT_EQ(messages_.request(), nullptr);
  EXPECT_EQ(messages_.response(), nullptr);
}

TEST_F(CallMessagesTest, TheNextCallHasTheirMemory) {
  messages_.Acquire(test_.method);
  EXPECT_NE(request(), response());
  const Message* const before[] = {request(), response()};
  messages_.Release(0, 0);
  Serve(std::string(1000, 'x'));
  messages_.Acquire(test_.method);
  EXPECT_EQ(request(), before[0]);
  EXPECT_EQ(response(), before[1]);
  EXPECT_EQ(response()->body(), "");
  EXPECT_GE(response()->SpaceUsedLong(), 1000U);
  EXPECT_GE(request()->SpaceUsedLong(), 1000U);
}

TEST_F(CallMessagesTest, LargeOnesAreNotKept) {
  constexpr std::size_t kLarge = kMaxKeptBytes + 1;
  for (const bool request_is : {false, true}) {
    messages_.Acquire(test_.method);
    (request_is ? request() : response())->set_body(std::string(kLarge, 'x'));
    messages_.Release(request_is ? kLarge : 0, request_is ? 0 : kLarge);
    messages_.Acquire(test_.method);
    EXPECT_LT(request()->SpaceUsedLong(), 1000U);
    EXPECT_LT(response()->SpaceUsedLong(), 1000U);
    messages_.Release(0, 0);
  }
}

TEST_F(CallMessagesTest, EachMethodHasItsOwn) {
  std::vector<std::unique_ptr<MethodOf>> methods;
  for (const Message* const prototype : std::initializer_list<const Message*>{
           &TestRequest::default_instance(), &Strict::default_instance(),
           &google::protobuf::DescriptorProto::default_instance(),
           &google::protobuf::FieldDescriptorProto::default_instance(),
           &google::protobuf::EnumDescriptorProto::default_instance()}) {
    methods.push_back(std::make_unique<MethodOf>(prototype));
  }
  // More than are kept, and then as many.
  for (const std::size_t count : {5, 5, 4, 4}) {
    std::set<const Message*> seen;
    for (std::size_t i = 0; i != count; ++i) {
      messages_.Acquire(methods[i]->method);
      for (const Message* const message :
           {messages_.request(), messages_.response()}) {
        EXPECT_EQ(message->GetDescriptor(),
                  methods[i]->method.request_prototype->GetDescriptor());
        seen.insert(message);
      }
      messages_.Release(0, 0);
    }
    if (count == 4) {
      EXPECT_EQ(seen.size(), 8U);
    }
  }
}

// Their prototype may be gone when the next call comes, or the program ends.
TEST_F(CallMessagesTest, ThoseOfTypesMadeAtRunTimeAreNotKept) {
  google::protobuf::DynamicMessageFactory factory;
  MethodOf dynamic(factory.GetPrototype(TestRequest::descriptor()));
  EXPECT_FALSE(dynamic.method.keeps_messages);
  EXPECT_TRUE(test_.method.keeps_messages);
  for (int i = 0; i != 3; ++i) {
    messages_.Acquire(dynamic.method);
    EXPECT_EQ(messages_.response()->GetDescriptor(), TestRequest::descriptor());
    messages_.response()->ParseFromString("\x0a\x01x");
    messages_.Release(0, 0);
  }
  Serve("x");
}

}  // namespace
}  // namespace flare::rpc::testing
