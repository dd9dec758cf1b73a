// The shop of before.cc by flare: docs/from_grpc.md. Either client calls either
// server.
//
//   after --serve=127.0.0.1:5590
//   after --call=127.0.0.1:5590

#include <gflags/gflags.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "example/from_grpc/prices.h"
#include "example/from_grpc/shop.flare.pb.h"
#include "flare/base/endpoint.h"
#include "flare/init.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/server.h"

DEFINE_string(serve, "", "Address to serve at.");
DEFINE_string(call, "", "Address of the server to call.");

using flare::rpc::GrpcCode;
using flare::rpc::StatusFromGrpc;

class ShopImpl : public shop::SyncShop {
  void Get(const shop::Query& query, shop::Item* item,
           flare::RpcServerController* controller) override {
    const auto found = kPrices.find(query.name());
    if (found == kPrices.end()) {
      return controller->SetFailed(StatusFromGrpc(GrpcCode::kNotFound),
                                   "no " + query.name());
    }
    controller->AddResponseTrailer("left", "12");
    item->set_name(found->first);
    item->set_price(found->second);
  }

  void List(const shop::Query&, flare::StreamWriter<shop::Item> writer,
            flare::RpcServerController*) override {
    shop::Item item;
    for (const auto& [name, price] : kPrices) {
      item.set_name(name);
      item.set_price(price);
      if (!writer.Write(item)) return;  // The client has left.
    }
    writer.Close();  // Else the call fails.
  }

  void Buy(flare::StreamReader<shop::Query> reader, shop::Bill* bill,
           flare::RpcServerController*) override {
    for (const shop::Query& query : reader) {
      bill->set_sum(bill->sum() + kPrices.at(query.name()));
    }
  }
};

void Serve() {
  flare::Server server;
  server.AddProtocols({"grpc", "flare"});
  server.AddService(std::make_unique<ShopImpl>());
  server.ListenOn(*flare::EndpointFromString(FLAGS_serve));
  if (!server.Start()) return;
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
}

void Get(const shop::Shop_SyncStub& stub, const std::string& name) {
  flare::RpcClientController controller;
  controller.SetTimeout(std::chrono::seconds(5));
  controller.AddMetadata("customer", "7");
  shop::Query query;
  query.set_name(name);
  const auto item = stub.Get(query, &controller);
  if (controller.ErrorCode() == StatusFromGrpc(GrpcCode::kNotFound)) {
    std::cout << "not found: " << item.error().message() << '\n';
  } else if (item) {
    const flare::Metadata& metadata = controller.GetResponseMetadata();
    std::cout << item->name() << " costs " << item->price() << ", "
              << *metadata.Get("left") << " left\n";
  }
}

void List(const shop::Shop_SyncStub& stub) {
  auto reader = stub.List(shop::Query());
  for (const shop::Item& item : reader) std::cout << item.name() << '\n';
  if (!reader.status().ok()) std::cout << "not all\n";
}

void Buy(const shop::Shop_SyncStub& stub) {
  auto [reader, writer] = stub.Buy();
  shop::Query query;
  for (const char* name : {"tea", "tea", "cup"}) {
    query.set_name(name);
    if (!writer.Write(query)) break;  // The call is over.
  }
  writer.Close();
  if (const auto bill = reader.Read())
    std::cout << "sum: " << bill->sum() << '\n';
}

int Entry(int, char**) {
  if (!FLAGS_serve.empty()) {
    Serve();
    return 0;
  }
  const shop::Shop_SyncStub stub("grpc://" + FLAGS_call);
  Get(stub, "tea");
  Get(stub, "gold");
  List(stub);
  Buy(stub);
  return 0;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
