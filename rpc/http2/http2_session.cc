#include "flare/rpc/http2/http2_session.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// Shorter pieces of data are copied: a slice would keep a block of input.
constexpr std::size_t kCopyAtMost = 512;

// What counts beside a field's bytes (RFC 9113, 6.5.2).
constexpr std::size_t kPerField = 32;

std::string_view View(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

nghttp2_nv ToNv(std::string_view name, std::string_view value) {
  return {
      .name = reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
      .value = reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())),
      .namelen = name.size(),
      .valuelen = value.size(),
      .flags = NGHTTP2_NV_FLAG_NONE};
}

// Of what can fail for want of memory alone.
void ThrowUnlessOk(int result) {
  if (result == NGHTTP2_ERR_NOMEM) throw std::bad_alloc();
  CHECK_EQ(result, 0) << nghttp2_strerror(result);
}

std::vector<nghttp2_nv> ToNvs(const std::vector<Http2Field>& fields) {
  std::vector<nghttp2_nv> nvs;
  nvs.reserve(fields.size());
  for (const Http2Field& field : fields) {
    nvs.push_back(ToNv(field.name, field.value));
  }
  return nvs;
}

}  // namespace

// What libnghttp2 calls. No exception may leave it.
class Http2Session::Callbacks {
 public:
  // One table serves all sessions.
  static const nghttp2_session_callbacks* Get() {
    static const nghttp2_session_callbacks* const callbacks = Make();
    return callbacks;
  }

  static ssize_t ReadData(nghttp2_session* session, std::int32_t, std::uint8_t*,
                          std::size_t length, std::uint32_t* flags,
                          nghttp2_data_source* source, void*) {
    auto* const stream = static_cast<Http2Stream*>(source->ptr);
    const std::size_t size = std::min(length, stream->out_.size());
    if (size == 0 && !stream->ends_) {
      stream->deferred_ = true;
      return NGHTTP2_ERR_DEFERRED;
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (size == stream->out_.size() && stream->ends_) {
      *flags |= NGHTTP2_DATA_FLAG_EOF;
      if (!stream->trailers_.empty()) {
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        try {
          std::vector<nghttp2_nv> nvs;
          nvs.reserve(stream->trailers_.size());
          for (const auto& [name, value] : stream->trailers_) {
            nvs.push_back(ToNv(name, value));
          }
          if (nghttp2_submit_trailer(session, stream->id_, nvs.data(),
                                     nvs.size()) != 0) {
            return NGHTTP2_ERR_CALLBACK_FAILURE;
          }
        } catch (...) {
          return NGHTTP2_ERR_CALLBACK_FAILURE;
        }
      }
    }
    return static_cast<ssize_t>(size);
  }

 private:
  static Http2Session* Self(void* user) {
    return static_cast<Http2Session*>(user);
  }
  static Http2Stream* StreamOf(nghttp2_session* session, std::int32_t id) {
    return static_cast<Http2Stream*>(
        nghttp2_session_get_stream_user_data(session, id));
  }

  template <class Code>
  static int Guard(Http2Session* self, Code&& code) {
    try {
      return code();
    } catch (const std::bad_alloc&) {
      self->Fail("out of memory");
      return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
  }

  static int OnBeginHeaders(nghttp2_session* session,
                            const nghttp2_frame* frame, void* user) {
    Http2Session* const self = Self(user);
    return Guard(self, [&] {
      self->header_list_ = 0;
      if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
      Http2Stream* const stream = self->handler_->OnStream();
      const std::int32_t id = frame->hd.stream_id;
      self->first_skipped_ = self->last_opened_ + 1;
      self->last_opened_ = id;
      if (stream == nullptr) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id,
                                  NGHTTP2_REFUSED_STREAM);
        return 0;
      }
      stream->id_ = id;
      nghttp2_session_set_stream_user_data(session, id, stream);
      return 0;
    });
  }

  static int OnHeader(nghttp2_session* session, const nghttp2_frame* frame,
                      const std::uint8_t* name, std::size_t name_size,
                      const std::uint8_t* value, std::size_t value_size,
                      std::uint8_t, void* user) {
    Http2Session* const self = Self(user);
    return Guard(self, [&]() -> int {
      Http2Stream* const stream = StreamOf(session, frame->hd.stream_id);
      if (stream == nullptr) return 0;
      self->header_list_ += name_size + value_size + kPerField;
      if (self->header_list_ > self->options_.max_header_list ||
          !self->handler_->OnField(stream, View(name, name_size),
                                   View(value, value_size))) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE,
                                  frame->hd.stream_id,
                                  NGHTTP2_ENHANCE_YOUR_CALM);
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
      }
      return 0;
    });
  }

  static int OnDataChunk(nghttp2_session* session, std::uint8_t,
                         std::int32_t id, const std::uint8_t* data,
                         std::size_t size, void* user) {
    Http2Session* const self = Self(user);
    return Guard(self, [&]() -> int {
      nghttp2_session_consume_connection(session, size);
      Http2Stream* const stream = StreamOf(session, id);
      if (stream == nullptr) return 0;
      if (size <= kCopyAtMost) {
        self->handler_->OnData(stream, CreateBufferSlow(View(data, size)));
        return 0;
      }
      Buffer bytes = self->input_;
      bytes.Skip(static_cast<std::size_t>(reinterpret_cast<const char*>(data) -
                                          self->input_begin_));
      self->handler_->OnData(stream, bytes.Cut(size));
      return 0;
    });
  }

  static int OnFrame(nghttp2_session* session, const nghttp2_frame* frame,
                     void* user) {
    Http2Session* const self = Self(user);
    return Guard(self, [&]() -> int {
      const bool ends = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
      Http2Stream* stream = nullptr;
      switch (frame->hd.type) {
        case NGHTTP2_HEADERS:
          self->NoteMessageFrame();
          stream = StreamOf(session, frame->hd.stream_id);
          if (stream == nullptr) return 0;
          self->handler_->OnHeaders(
              stream, frame->headers.cat == NGHTTP2_HCAT_HEADERS, ends);
          // The handler may have given it up.
          stream = StreamOf(session, frame->hd.stream_id);
          if (ends && stream != nullptr) self->handler_->OnEnd(stream);
          return 0;
        case NGHTTP2_DATA:
          if (frame->hd.length != 0) {
            self->NoteMessageFrame();
          } else if (!ends) {
            self->AdmitControlFrame();
          }
          stream = StreamOf(session, frame->hd.stream_id);
          if (ends && stream != nullptr) self->handler_->OnEnd(stream);
          return 0;
        case NGHTTP2_GOAWAY:
          self->handler_->OnGoAway(
              frame->goaway.last_stream_id,
              static_cast<Http2Error>(frame->goaway.error_code),
              View(frame->goaway.opaque_data, frame->goaway.opaque_data_len));
          return 0;
        case NGHTTP2_PING:
          if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) {
            self->handler_->OnPong();
          }
          self->AdmitControlFrame();
          return 0;
        case NGHTTP2_WINDOW_UPDATE:
          stream = StreamOf(session, frame->hd.stream_id);
          if (stream != nullptr) {
            self->handler_->OnWindow(
                stream, static_cast<std::size_t>(
                            frame->window_update.window_size_increment));
          }
          self->AdmitControlFrame();
          return 0;
        case NGHTTP2_SETTINGS:
          if ((frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
            self->handler_->OnPeerWindow(nghttp2_session_get_remote_settings(
                session, NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE));
          }
          self->AdmitControlFrame();
          return 0;
        case NGHTTP2_RST_STREAM:
          self->reset_by_peer_ = frame->hd.stream_id;
          self->AdmitReset();
          return 0;
        default:
          self->AdmitControlFrame();
          return 0;
      }
    });
  }

  static int OnFrameSent(nghttp2_session* session, const nghttp2_frame* frame,
                         void* user) {
    Http2Session* const self = Self(user);
    if (frame->hd.type == NGHTTP2_GOAWAY &&
        frame->goaway.error_code != NGHTTP2_NO_ERROR) {
      self->terminated_ = true;
      static_cast<void>(Guard(self, [&] {
        if (self->error_.empty()) {
          self->error_.assign("HTTP/2: ")
              .append(nghttp2_http2_strerror(frame->goaway.error_code));
        }
        return 0;
      }));
    }
    const bool ends =
        (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
        (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    // The response is all sent: the rest of the request isn't wanted.
    if (ends && self->role_ == Role::kServer &&
        nghttp2_session_get_stream_remote_close(session, frame->hd.stream_id) ==
            0) {
      nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                NGHTTP2_NO_ERROR);
    }
    return 0;
  }

  static int SendData(nghttp2_session* session, nghttp2_frame* frame,
                      const std::uint8_t* header, std::size_t length,
                      nghttp2_data_source* source, void* user) {
    Http2Session* const self = Self(user);
    return Guard(self, [&]() -> int {
      auto* const stream = static_cast<Http2Stream*>(source->ptr);
      self->output_->Append(View(header, kFrameHeaderSize));
      DCHECK_EQ(frame->data.padlen, 0u);  // Nobody asks for padding.
      if (length == 0) return 0;
      self->NoteMessageFrame();
      self->output_->Append(stream->out_.Cut(length));
      if (StreamOf(session, stream->id_) != nullptr) {
        self->handler_->OnSent(stream, length);
      }
      return 0;
    });
  }

  static int OnStreamClosed(nghttp2_session* session, std::int32_t id,
                            std::uint32_t error, void* user) {
    Http2Session* const self = Self(user);
    Http2Stream* const stream = StreamOf(session, id);
    if (stream == nullptr) return 0;
    nghttp2_session_set_stream_user_data(session, id, nullptr);
    if (self->reset_by_peer_ == id ||
        nghttp2_session_get_stream_remote_close(session, id) == 1) {
      self->ended_[self->next_ended_++ % self->ended_.size()] = id;
    }
    return Guard(self, [&] {
      self->handler_->OnClosed(stream, static_cast<Http2Error>(error),
                               self->reset_by_peer_ == id);
      return 0;
    });
  }

  static int OnError(nghttp2_session*, int, const char* text, std::size_t size,
                     void* user) {
    Http2Session* const self = Self(user);
    return Guard(self, [&] {
      self->error_.assign("HTTP/2: ").append(text, size);
      return 0;
    });
  }

  static int OnInvalidFrame(nghttp2_session*, const nghttp2_frame*, int code,
                            void* user) {
    Http2Session* const self = Self(user);
    return Guard(self, [&] {
      if (self->error_.empty()) {
        self->error_.assign("HTTP/2: ").append(nghttp2_strerror(code));
      }
      return 0;
    });
  }

  static const nghttp2_session_callbacks* Make() {
    nghttp2_session_callbacks* callbacks = nullptr;
    ThrowUnlessOk(nghttp2_session_callbacks_new(&callbacks));
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks,
                                                            OnBeginHeaders);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, OnHeader);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks,
                                                              OnDataChunk);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, OnFrame);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks,
                                                         OnFrameSent);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, SendData);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks,
                                                           OnStreamClosed);
    nghttp2_session_callbacks_set_error_callback2(callbacks, OnError);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(
        callbacks, OnInvalidFrame);
    return callbacks;
  }
};

Http2Session::Http2Session(Role role, const Options& options,
                           Http2Handler* handler)
    : role_(role),
      options_(options),
      handler_(handler),
      control_frames_(options.max_control_frames_per_second),
      resets_(options.max_resets_per_second) {
  nghttp2_option* option = nullptr;
  ThrowUnlessOk(nghttp2_option_new(&option));
  nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_option_set_no_closed_streams(option, 1);
  nghttp2_option_set_peer_max_concurrent_streams(option, 100);
  const auto* const callbacks = Callbacks::Get();
  nghttp2_session* made = nullptr;
  const int result =
      role == Role::kServer
          ? nghttp2_session_server_new2(&made, callbacks, this, option)
          : nghttp2_session_client_new2(&made, callbacks, this, option);
  nghttp2_option_del(option);
  ThrowUnlessOk(result);
  session_.reset(made);
  const std::array<nghttp2_settings_entry, 3> settings = {{
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, options.stream_window},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE,
       static_cast<std::uint32_t>(
           std::min<std::size_t>(options.max_header_list,
                                 std::numeric_limits<std::uint32_t>::max()))},
      role == Role::kServer
          ? nghttp2_settings_entry{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS,
                                   options.max_concurrent_streams}
          : nghttp2_settings_entry{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
  }};
  ThrowUnlessOk(nghttp2_submit_settings(session_.get(), NGHTTP2_FLAG_NONE,
                                        settings.data(), settings.size()));
  ThrowUnlessOk(nghttp2_session_set_local_window_size(
      session_.get(), NGHTTP2_FLAG_NONE, 0,
      static_cast<std::int32_t>(options.connection_window)));
}

void Http2Session::Delete::operator()(nghttp2_session* session) const {
  nghttp2_session_del(session);
}

Http2Session::~Http2Session() = default;

bool Http2Session::Receive(Buffer&& bytes) {
  while (!bytes.empty() && !failed_) {
    const std::string_view first = bytes.FirstContiguous();
    input_ = bytes.Cut(first.size());
    input_begin_ = first.data();
    reset_by_peer_ = 0;
    const ssize_t taken = nghttp2_session_mem_recv(
        session_.get(), reinterpret_cast<const std::uint8_t*>(first.data()),
        first.size());
    input_.Clear();
    if (taken < 0) Fail(nghttp2_strerror(static_cast<int>(taken)));
  }
  return !failed_ && !terminated_ &&
         nghttp2_session_want_read(session_.get()) != 0;
}

Buffer Http2Session::Flush() {
  BufferBuilder builder;
  return Flush(&builder);
}

Buffer Http2Session::Flush(BufferBuilder* builder) {
  if (failed_) return Buffer();
  output_ = builder;
  try {
    for (;;) {
      const std::uint8_t* data = nullptr;
      const ssize_t size = nghttp2_session_mem_send(session_.get(), &data);
      if (size < 0) Fail(nghttp2_strerror(static_cast<int>(size)));
      if (size <= 0) break;
      builder->Append(View(data, static_cast<std::size_t>(size)));
    }
    output_ = nullptr;
    return builder->DestructiveGet();
  } catch (const std::bad_alloc&) {
    output_ = nullptr;
    Fail("out of memory");
    return Buffer();
  }
}

bool Http2Session::over() const {
  return broken() || (nghttp2_session_want_read(session_.get()) == 0 &&
                      nghttp2_session_want_write(session_.get()) == 0);
}

void Http2Session::Fail(std::string_view why) noexcept {
  failed_ = true;
  try {
    if (error_.empty()) error_.assign("HTTP/2: ").append(why);
  } catch (const std::bad_alloc&) {
    error_ = "no memory";  // As short as to need none.
  }
}

void Http2Session::AdmitControlFrame() {
  if (free_control_frames_ > 0) {
    --free_control_frames_;
    return;
  }
  if (control_frames_.Admit(NowNs())) return;
  Terminate(Http2Error::kEnhanceYourCalm,
            "HTTP/2: too many frames that are no messages");
}

void Http2Session::AdmitReset() {
  if (resets_.Admit(NowNs())) return;
  Terminate(Http2Error::kEnhanceYourCalm, "HTTP/2: too many streams are reset");
}

void Http2Session::Terminate(Http2Error error, std::string why) {
  error_ = std::move(why);
  if (std::exchange(terminated_, true)) return;
  nghttp2_session_terminate_session(session_.get(),
                                    static_cast<std::uint32_t>(error));
}

void Http2Session::CheckFrame(std::string_view header) {
  const auto byte = [header](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(header[i]));
  };
  const std::uint32_t type = byte(3);
  const auto id = static_cast<std::int32_t>(
      (byte(5) & 0x7f) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8));
  // Of what follows the last stream libnghttp2 takes care.
  if (type > NGHTTP2_HEADERS || id > last_opened_) return;
  if (id != 0 && std::find(ended_.begin(), ended_.end(), id) != ended_.end())
      [[unlikely]] {
    return Terminate(Http2Error::kStreamClosed,
                     "HTTP/2: a frame of a stream that has ended");
  }
  if (type == NGHTTP2_HEADERS && id >= first_skipped_ && id < last_opened_)
      [[unlikely]] {
    Terminate(Http2Error::kProtocolError,
              "HTTP/2: a stream whose number is lower than the last one's");
  }
}

Http2Stream* Http2Session::Find(std::int32_t id) const {
  return static_cast<Http2Stream*>(
      nghttp2_session_get_stream_user_data(session_.get(), id));
}

bool Http2Session::Open(Http2Stream* stream,
                        const std::vector<Http2Field>& fields, bool end) {
  const std::vector<nghttp2_nv> nvs = ToNvs(fields);
  nghttp2_data_provider provider = {.source = {.ptr = stream},
                                    .read_callback = &Callbacks::ReadData};
  const std::int32_t id =
      nghttp2_submit_request(session_.get(), nullptr, nvs.data(), nvs.size(),
                             end ? nullptr : &provider, stream);
  if (id < 0) return false;
  stream->id_ = id;
  return true;
}

void Http2Session::SendHeaders(Http2Stream* stream,
                               const std::vector<Http2Field>& fields,
                               bool end) {
  const std::vector<nghttp2_nv> nvs = ToNvs(fields);
  nghttp2_data_provider provider = {.source = {.ptr = stream},
                                    .read_callback = &Callbacks::ReadData};
  const int error =
      nghttp2_submit_response(session_.get(), stream->id_, nvs.data(),
                              nvs.size(), end ? nullptr : &provider);
  if (error != 0) Fail(nghttp2_strerror(error));
}

void Http2Session::SendData(Http2Stream* stream, Buffer&& bytes) {
  stream->out_.Append(std::move(bytes));
  stream->compaction_.AfterAppend(&stream->out_);
  if (std::exchange(stream->deferred_, false)) {
    nghttp2_session_resume_data(session_.get(), stream->id_);
  }
}

void Http2Session::SendTrailers(Http2Stream* stream,
                                const std::vector<Http2Field>& fields) {
  if (std::exchange(stream->ends_, true)) return;
  stream->trailers_.reserve(fields.size());
  for (const Http2Field& field : fields) {
    stream->trailers_.push_back(
        {std::string(field.name), std::string(field.value)});
  }
  if (std::exchange(stream->deferred_, false)) {
    nghttp2_session_resume_data(session_.get(), stream->id_);
  }
}

void Http2Session::SendReset(Http2Stream* stream, Http2Error error) {
  nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, stream->id_,
                            static_cast<std::uint32_t>(error));
}

void Http2Session::Grant(Http2Stream* stream, std::size_t bytes) {
  if (bytes == 0) return;
  nghttp2_submit_window_update(
      session_.get(), NGHTTP2_FLAG_NONE, stream->id_,
      static_cast<std::int32_t>(std::min<std::size_t>(bytes, 1 << 30)));
}

std::size_t Http2Session::Window(const Http2Stream& stream) const {
  return static_cast<std::size_t>(
      std::max(0, nghttp2_session_get_stream_local_window_size(session_.get(),
                                                               stream.id_)));
}

void Http2Session::Ping() {
  nghttp2_submit_ping(session_.get(), NGHTTP2_FLAG_NONE, nullptr);
}

void Http2Session::SendShutdownNotice() {
  nghttp2_submit_shutdown_notice(session_.get());
}

void Http2Session::SendGoAway(Http2Error error, std::string_view text) {
  nghttp2_submit_goaway(session_.get(), NGHTTP2_FLAG_NONE,
                        nghttp2_session_get_last_proc_stream_id(session_.get()),
                        static_cast<std::uint32_t>(error),
                        reinterpret_cast<const std::uint8_t*>(text.data()),
                        text.size());
}

}  // namespace flare::rpc
