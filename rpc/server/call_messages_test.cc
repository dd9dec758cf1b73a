#include "flare/rpc/server/call_messages.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>

#include <algorithm>
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

// One whose method takes and returns the test's messages.
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
  EXPECT_FALSE(messages_.acquired());
  messages_.Release(0, 0);
  Serve("x");
  EXPECT_FALSE(messages_.acquired());
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

// A type that tells how much memory it keeps: small calls have the same pair
// for good.
TEST_F(CallMessagesTest, SmallOnesWithoutSubmessagesStayForever) {
  Serve(std::string(kMaxKeptBytes, 'x'));
  messages_.Acquire(test_.method);
  const Message* const kept = request();
  messages_.Release(0, 0);
  for (int i = 0; i != 2000; ++i) {
    messages_.Acquire(test_.method);
    ASSERT_EQ(request(), kept) << i;
    // Unknown fields, whose list stays as large as it has been.
    for (int j = 0; j != i % 100; ++j) {
      request()->GetReflection()->MutableUnknownFields(request())->AddVarint(
          1000 + j, 1);
    }
    messages_.Release(1000, 1000);
  }
}

TEST_F(CallMessagesTest, OnesThatKeepMuchAreMadeAnew) {
  messages_.Acquire(test_.method);
  // More than it was said to have received.
  const std::string large(CallMessages::kMostAllowance, 'x');
  request()->set_body(large);
  messages_.Release(0, 0);
  bool made_anew = false;
  for (int i = 0; i != 2000 && !made_anew; ++i) {
    messages_.Acquire(test_.method);
    made_anew = request()->SpaceUsedLong() < large.size();
    messages_.Release(1000, 1000);
  }
  EXPECT_TRUE(made_anew);
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

using google::protobuf::DescriptorProto;

// A request of at most 4 KiB whose elements are where no other's are.
std::string Shape(int row, int cell) {
  DescriptorProto table;
  for (int i = 0; i != row; ++i) table.add_nested_type();
  DescriptorProto* const last = table.add_nested_type();
  for (int i = 0; i != cell; ++i) last->add_nested_type();
  DescriptorProto* const leaf = last->add_nested_type();
  for (int i = 0; i != 600; ++i) leaf->add_field();
  return table.SerializeAsString();
}

class KeptShapesTest : public ::testing::Test {
 protected:
  void Serve(CallMessages* messages, const std::string& request) {
    messages->Acquire(method_.method);
    ASSERT_TRUE(messages->request()->ParseFromString(request));
    messages->response()->CopyFrom(*messages->request());
    messages->Release(request.size(), request.size());
  }

  // The memory of the kept messages that serve an empty call.
  std::size_t SizeOf(CallMessages* messages) {
    messages->Acquire(method_.method);
    const std::size_t size = messages->request()->SpaceUsedLong() +
                             messages->response()->SpaceUsedLong();
    messages->Release(0, 0);
    return size;
  }

  MethodOf method_{&DescriptorProto::default_instance()};
};

// A cleared message keeps the union of the shapes that it has had.
TEST_F(KeptShapesTest, AllShapesTogetherAreBounded) {
  CallMessages messages;
  std::size_t most = 0;
  for (int row = 0; row != 40; ++row) {
    for (int cell = 0; cell != 40; ++cell) {
      const std::string request = Shape(row, cell);
      ASSERT_LE(request.size(), kMaxKeptBytes);
      Serve(&messages, request);
      if (cell % 8 == 0) most = std::max(most, SizeOf(&messages));
    }
  }
  EXPECT_LE(most, CallMessages::kMostAllowance);
}

TEST_F(KeptShapesTest, AllPairsTogetherAreBounded) {
  const std::size_t before = CallMessages::allowed_in_total();
  {
    constexpr std::size_t kCalls = 300;
    std::vector<CallMessages> calls(kCalls);
    // Smaller shapes, of which several fit in a pair's allowance.
    for (int round = 0; round != 30; ++round) {
      DescriptorProto table;
      for (int i = 0; i != round; ++i) table.add_nested_type();
      for (int i = 0; i != 20; ++i) table.mutable_nested_type()->Add();
      for (CallMessages& call : calls) {
        Serve(&call, table.SerializeAsString());
        EXPECT_LE(CallMessages::allowed_in_total(),
                  CallMessages::kTotalAllowance);
      }
    }
    std::size_t size = 0;
    for (CallMessages& call : calls) size += SizeOf(&call);
    EXPECT_LE(size, CallMessages::kTotalAllowance +
                        kCalls * CallMessages::kLeastAllowance);
    EXPECT_GT(CallMessages::allowed_in_total(), before);
  }
  EXPECT_EQ(CallMessages::allowed_in_total(), before);
}

TEST_F(KeptShapesTest, SmallOnesOfOneShapeStay) {
  CallMessages messages;
  messages.Acquire(method_.method);
  const Message* const kept = messages.request();
  messages.Release(0, 0);
  for (int i = 0; i != 500; ++i) Serve(&messages, "\x0a\x01x");
  messages.Acquire(method_.method);
  EXPECT_EQ(messages.request(), kept);
  messages.Release(0, 0);
}

}  // namespace
}  // namespace flare::rpc::testing
