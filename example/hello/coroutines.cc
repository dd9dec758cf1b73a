// Calls side by side, by coroutines: docs/coroutines.md. With
// example/rpc/server:
//
//   ./coroutines flare://127.0.0.1:5567

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/base/expected.h"
#include "flare/fiber/coroutine.h"
#include "flare/fiber/future.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"

namespace echo = example::protobuf_echo;
using flare::Future;
using Outcome = flare::Expected<std::string, flare::Status>;

// Two calls, one after the other.
Future<Outcome> EchoTwice(flare::RpcChannel* channel, std::string word) {
  const echo::EchoService_AsyncStub stub(channel);
  for (int i = 0; i != 2; ++i) {
    echo::EchoRequest request;
    request.set_body(word + '!');
    auto reply = co_await stub.Echo(request);
    if (!reply) co_return reply.error();
    word = reply->body();
  }
  co_return word;
}

// A coroutine for each word: all first calls are made before this one waits.
Future<> EchoAll(flare::RpcChannel* channel, std::vector<std::string> words) {
  std::vector<Future<Outcome>> outcomes;
  outcomes.reserve(words.size());
  for (std::string& word : words) {
    outcomes.push_back(EchoTwice(channel, std::move(word)));
  }
  for (const Outcome& word : co_await flare::WhenAll(std::move(outcomes))) {
    std::cout << (word ? *word : word.error().ToString()) << '\n';
  }
}

int Entry(int argc, char** argv) {
  flare::RpcChannel channel;
  if (argc != 2 || !channel.Open(argv[1])) return 1;
  flare::fiber::BlockingGet(EchoAll(&channel, {"one", "two", "three"}));
  return 0;
}

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
