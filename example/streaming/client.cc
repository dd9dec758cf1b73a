// Calls of all four kinds, and how they end: docs/streaming.md. With a server
// of this folder:
//
//   ./client flare://127.0.0.1:5573

#include <chrono>
#include <iostream>
#include <tuple>
#include <utility>

#include "example/streaming/demo.flare.pb.h"
#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"

namespace demo = example::streaming;
using std::chrono::milliseconds;

demo::Text MakeText(const char* text) {
  demo::Text message;
  message.set_text(text);
  return message;
}

demo::Number MakeNumber(int value) {
  demo::Number message;
  message.set_value(value);
  return message;
}

void Sum(const demo::Demo_SyncStub& stub) {
  flare::RpcClientController controller;      // Outlives reader and writer.
  controller.SetTimeout(milliseconds(5000));  // For the whole call.
  auto [reader, writer] = stub.Sum(&controller);
  for (int i = 1; i <= 100; ++i) {
    if (!writer.Write(MakeNumber(i))) break;  // The call is over.
  }
  writer.Close();
  auto sum = reader.Read();
  if (!sum) {
    std::cout << reader.status().ToString() << '\n';
    return;
  }
  std::cout << "sum: " << sum->value() << '\n';
}

void Count(const demo::Demo_SyncStub& stub, int up_to) {
  auto reader = stub.Count(MakeNumber(up_to));
  for (const demo::Number& number : reader) {
    std::cout << number.value() << ' ';
  }
  if (reader.error() == flare::StreamError::EndOfStream) {
    std::cout << "and that is all\n";
  } else {
    std::cout << reader.status().ToString() << '\n';
  }
}

void Chat(const demo::Demo_SyncStub& stub) {
  flare::StreamReader<demo::Text> reader;
  flare::StreamWriter<demo::Text> writer;
  std::tie(reader, writer) = stub.Chat();
  // Two fibers, so that neither direction waits for the other.
  flare::Future<> writing = flare::fiber::Async([&writer] {
    for (const char* text : {"hello", "goodbye"}) {
      if (!writer.Write(MakeText(text))) return;
    }
    writer.Close();
  });
  for (const demo::Text& answer : reader) {
    std::cout << answer.text() << '\n';
  }
  flare::fiber::BlockingGet(std::move(writing));
}

void ChatWithPatience(const demo::Demo_SyncStub& stub) {
  auto [reader, writer] = stub.Chat();
  reader.SetExpiration(milliseconds(20));  // For reads; the call lives on.
  auto nothing = reader.Read();
  if (!nothing && nothing.error() == flare::StreamError::Timeout) {
    std::cout << "no answer to nothing\n";
  }
  reader.SetExpiration(milliseconds(5000));
  writer.WriteLast(MakeText("something"));
  std::cout << reader.Read()->text() << '\n';
  // Both are dropped before the call's end, which cancels it.
}

void CountAsync(flare::RpcChannel* channel) {
  auto reader = demo::Demo_AsyncStub(channel).Count(MakeNumber(2));
  auto first = reader.Read();  // A future; doesn't block.
  std::cout << "first: " << flare::fiber::BlockingGet(&first)->value() << '\n';
}

int Entry(int argc, char** argv) {
  flare::RpcChannel channel;
  if (argc != 2 || !channel.Open(argv[1])) return 1;
  const demo::Demo_SyncStub stub(&channel);
  std::cout << stub.Echo(MakeText("echo"))->text() << '\n';
  Sum(stub);
  Count(stub, 3);
  Count(stub, -1);
  Chat(stub);
  ChatWithPatience(stub);
  CountAsync(&channel);
  return 0;
}

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
