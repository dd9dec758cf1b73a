// One side of an HTTP/2 connection by libnghttp2, for tests. No IO: bytes go in
// by Receive(), and come out by Flush().
//
//   Nghttp2Peer server(/*server=*/true);
//   ASSERT_TRUE(server.Receive(bytes));
//   Send(server.Flush());
#ifndef FLARE_RPC_HTTP2_NGHTTP2_TESTING_H_
#define FLARE_RPC_HTTP2_NGHTTP2_TESTING_H_

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"

namespace flare::rpc::testing {

// One side, by libnghttp2. Servers answer each request with its content.
class Nghttp2Peer {
 public:
  // The input of one stream.
  struct Message {
    std::string fields;
    std::string data;
    bool ended = false;
  };

  explicit Nghttp2Peer(bool server) : server_(server) {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, OnField);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks,
                                                              OnData);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, OnFrame);
    nghttp2_session_callbacks_set_select_padding_callback(callbacks, Pad);
    if (server) {
      nghttp2_session_server_new(&session_, callbacks, this);
    } else {
      nghttp2_session_client_new(&session_, callbacks, this);
    }
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  Nghttp2Peer(const Nghttp2Peer&) = delete;
  Nghttp2Peer& operator=(const Nghttp2Peer&) = delete;
  ~Nghttp2Peer() { nghttp2_session_del(session_); }

  bool Receive(const Buffer& bytes) {
    const std::string text = FlattenSlow(bytes);
    return nghttp2_session_mem_recv(
               session_, reinterpret_cast<const std::uint8_t*>(text.data()),
               text.size()) == static_cast<ssize_t>(text.size());
  }
  std::string Flush() {
    std::string sent;
    for (;;) {
      const std::uint8_t* data = nullptr;
      const ssize_t size = nghttp2_session_mem_send(session_, &data);
      if (size <= 0) return sent;
      sent.append(reinterpret_cast<const char*>(data),
                  static_cast<std::size_t>(size));
    }
  }

  std::int32_t Ask(std::string_view path, std::string body) {
    const std::vector<nghttp2_nv> fields = {
        Field(":method", "POST"), Field(":scheme", "http"),
        Field(":path", path), Field(":authority", "here")};
    auto provider = ProviderOf(std::move(body));
    return nghttp2_submit_request(session_, nullptr, fields.data(),
                                  fields.size(), &provider, nullptr);
  }

  std::map<std::int32_t, Message> messages;
  int goaways = 0;

 private:
  static nghttp2_nv Field(std::string_view name, std::string_view value) {
    return {
        .name = reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
        .value =
            reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())),
        .namelen = name.size(),
        .valuelen = value.size(),
        .flags = NGHTTP2_NV_FLAG_NONE};
  }
  static std::string_view View(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
  }
  nghttp2_data_provider ProviderOf(std::string body) {
    bodies_.push_back(std::make_unique<std::string>(std::move(body)));
    return {.source = {.ptr = bodies_.back().get()}, .read_callback = ReadBody};
  }

  static ssize_t ReadBody(nghttp2_session* session, std::int32_t id,
                          std::uint8_t* out, std::size_t length,
                          std::uint32_t* flags, nghttp2_data_source* source,
                          void* user) {
    auto& body = *static_cast<std::string*>(source->ptr);
    const std::size_t size = std::min(length, body.size());
    body.copy(reinterpret_cast<char*>(out), size);
    body.erase(0, size);
    if (!body.empty()) return static_cast<ssize_t>(size);
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (static_cast<Nghttp2Peer*>(user)->server_) {
      *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
      const nghttp2_nv trailer = Field("last", "1");
      nghttp2_submit_trailer(session, id, &trailer, 1);
    }
    return static_cast<ssize_t>(size);
  }
  // Pads each second frame.
  static ssize_t Pad(nghttp2_session*, const nghttp2_frame* frame,
                     std::size_t most, void* user) {
    const bool pads = ++static_cast<Nghttp2Peer*>(user)->frames_ % 2 == 0;
    return static_cast<ssize_t>(
        std::min(most, frame->hd.length + (pads ? 100 : 0)));
  }
  static int OnField(nghttp2_session*, const nghttp2_frame* frame,
                     const std::uint8_t* name, std::size_t name_size,
                     const std::uint8_t* value, std::size_t value_size,
                     std::uint8_t, void* user) {
    static_cast<Nghttp2Peer*>(user)
        ->messages[frame->hd.stream_id]
        .fields.append(View(name, name_size))
        .append("=")
        .append(View(value, value_size))
        .append(";");
    return 0;
  }
  static int OnData(nghttp2_session*, std::uint8_t, std::int32_t id,
                    const std::uint8_t* data, std::size_t size, void* user) {
    static_cast<Nghttp2Peer*>(user)->messages[id].data.append(View(data, size));
    return 0;
  }
  static int OnFrame(nghttp2_session* session, const nghttp2_frame* frame,
                     void* user) {
    auto* const self = static_cast<Nghttp2Peer*>(user);
    if (frame->hd.type == NGHTTP2_GOAWAY) ++self->goaways;
    if ((frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS) ||
        (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) {
      return 0;
    }
    Message& message = self->messages[frame->hd.stream_id];
    message.ended = true;
    if (!self->server_) return 0;
    auto provider = self->ProviderOf(message.data);
    const std::vector<nghttp2_nv> fields = {Field(":status", "200"),
                                            Field("had", message.fields)};
    return nghttp2_submit_response(session, frame->hd.stream_id, fields.data(),
                                   fields.size(), &provider);
  }

  const bool server_;
  nghttp2_session* session_ = nullptr;
  std::vector<std::unique_ptr<std::string>> bodies_;
  int frames_ = 0;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_HTTP2_NGHTTP2_TESTING_H_
