// Fetches pages side by side, and says what came of each.
//
//   fetch http://127.0.0.1:8080/a https://127.0.0.1:8443/b
//   fetch --save=/tmp/page http://127.0.0.1:8080/a

#include <gflags/gflags.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/fiber/future.h"
#include "flare/init.h"
#include "flare/rpc/http_client.h"

DEFINE_string(ca, "", "The roots that vouch for servers; empty: the system's.");
DEFINE_string(save, "", "A file for the bodies, as they come.");

namespace {

using namespace std::literals;

void Report(const std::string& url, const flare::HttpClient::Result& response) {
  if (!response) {
    std::cout << url << ": "
              << flare::HttpClient::ErrorCodeToString(response.error().code())
              << '\n';
    std::cerr << response.error().message() << '\n';
    return;
  }
  std::cout << url << ": " << static_cast<int>(response->status()) << ", "
            << response->body_size() << " bytes of "
            << response->headers()->TryGet("Content-Type").value_or("?")
            << '\n';
}

// However large it is: no more than a piece of it is in memory.
void Save(const flare::HttpClient& client, const std::string& url,
          std::ofstream* file) {
  flare::HttpRequestOptions options;
  options.on_body = [file](const flare::HttpResponse& response,
                           const flare::Buffer& piece) {
    if (response.status() != flare::HttpStatus::OK) return false;
    for (std::string_view bytes : piece) *file << bytes;
    return file->good();
  };
  Report(url, client.Get(url, options));
}

int Entry(int argc, char** argv) {
  const std::vector<std::string> urls(argv + 1, argv + argc);
  flare::HttpClient client(
      {.tls = {.ca = FLAGS_ca},
       .proxy = flare::HttpProxyOptions::FromEnvironment()});

  if (!FLAGS_save.empty()) {
    std::ofstream file(FLAGS_save, std::ios::binary);
    for (const std::string& url : urls) Save(client, url, &file);
    return 0;
  }

  std::vector<flare::Future<flare::HttpClient::Result>> responses;
  responses.reserve(urls.size());
  for (const std::string& url : urls) {
    responses.push_back(
        client.AsyncGet(url, {.timeout = 5s, .max_redirection_count = 3}));
  }
  for (std::size_t i = 0; i != urls.size(); ++i) {
    Report(urls[i], flare::fiber::BlockingGet(std::move(responses[i])));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
