// The service, for its server and its test.
#ifndef GREETING_GREETING_IMPL_H_
#define GREETING_GREETING_IMPL_H_

#include "flare/rpc/rpc_server_controller.h"
#include "greeting/greeting.flare.pb.h"

namespace example::greeting {

class GreetingImpl : public SyncGreeting {
  void Greet(const Name& request, Words* response,
             flare::RpcServerController*) override {
    response->set_words("Hello, " + request.name() + ".");
  }
};

}  // namespace example::greeting

#endif  // GREETING_GREETING_IMPL_H_
