// A shop by gRPC C++, server and client. after.cc is the same by flare, and
// docs/from_grpc.md compares the two.
//
//   before --serve=127.0.0.1:5590
//   before --call=127.0.0.1:5590

#include <gflags/gflags.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "example/from_grpc/grpc_cpp/shop.grpc.pb.h"
#include "example/from_grpc/prices.h"
#include "grpcpp/grpcpp.h"

DEFINE_string(serve, "", "Address to serve at.");
DEFINE_string(call, "", "Address of the server to call.");

using grpc::Status;
using grpc::StatusCode;

class ShopImpl final : public shop::Shop::Service {
  Status Get(grpc::ServerContext* context, const shop::Query* query,
             shop::Item* item) override {
    const auto found = kPrices.find(query->name());
    if (found == kPrices.end()) {
      return Status(StatusCode::NOT_FOUND, "no " + query->name());
    }
    context->AddTrailingMetadata("left", "12");
    item->set_name(found->first);
    item->set_price(found->second);
    return Status::OK;
  }

  Status List(grpc::ServerContext*, const shop::Query*,
              grpc::ServerWriter<shop::Item>* writer) override {
    shop::Item item;
    for (const auto& [name, price] : kPrices) {
      item.set_name(name);
      item.set_price(price);
      if (!writer->Write(item)) break;  // The client has left.
    }
    return Status::OK;
  }

  Status Buy(grpc::ServerContext*, grpc::ServerReader<shop::Query>* reader,
             shop::Bill* bill) override {
    shop::Query query;
    while (reader->Read(&query)) {
      bill->set_sum(bill->sum() + kPrices.at(query.name()));
    }
    return Status::OK;
  }
};

void Serve() {
  ShopImpl service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(FLAGS_serve, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server != nullptr) server->Wait();
}

void Get(shop::Shop::Stub* stub, const std::string& name) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(5));
  context.AddMetadata("customer", "7");
  shop::Query query;
  query.set_name(name);
  shop::Item item;
  const Status status = stub->Get(&context, query, &item);
  if (status.error_code() == StatusCode::NOT_FOUND) {
    std::cout << "not found: " << status.error_message() << '\n';
  } else if (status.ok()) {
    const auto& trailers = context.GetServerTrailingMetadata();
    std::cout << item.name() << " costs " << item.price() << ", "
              << trailers.find("left")->second << " left\n";
  }
}

void List(shop::Shop::Stub* stub) {
  grpc::ClientContext context;
  const auto reader = stub->List(&context, shop::Query());
  shop::Item item;
  while (reader->Read(&item)) std::cout << item.name() << '\n';
  if (!reader->Finish().ok()) std::cout << "not all\n";
}

void Buy(shop::Shop::Stub* stub) {
  grpc::ClientContext context;
  shop::Bill bill;
  const auto writer = stub->Buy(&context, &bill);
  shop::Query query;
  for (const char* name : {"tea", "tea", "cup"}) {
    query.set_name(name);
    if (!writer->Write(query)) break;  // The call is over.
  }
  writer->WritesDone();
  if (writer->Finish().ok()) std::cout << "sum: " << bill.sum() << '\n';
}

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (!FLAGS_serve.empty()) {
    Serve();
    return 1;  // It couldn't.
  }
  const auto stub = shop::Shop::NewStub(
      grpc::CreateChannel(FLAGS_call, grpc::InsecureChannelCredentials()));
  Get(stub.get(), "tea");
  Get(stub.get(), "gold");
  List(stub.get());
  Buy(stub.get());
  return 0;
}
