#include "flare/rpc/recording/recording_format.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <utility>

#include "flare/base/crc32c.h"
#include "rpc/recording/recorded_call.pb.h"

namespace flare {
namespace {

using google::protobuf::io::CodedInputStream;

constexpr std::string_view kMagic = "flarecal";
constexpr std::uint32_t kVersion = 1;

Status Damaged(std::string what) { return Status(EBADMSG, std::move(what)); }

// Little-endian.
void AppendNumber(std::uint32_t number, std::string* bytes) {
  for (int shift = 0; shift != 32; shift += 8) {
    bytes->push_back(static_cast<char>(number >> shift));
  }
}

std::uint32_t ReadNumber(std::string_view bytes) {
  std::uint32_t number = 0;
  for (int i = 3; i >= 0; --i) {
    number = number << 8 |
             static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
  }
  return number;
}

// Covers the length, too: zeros at the end of a file aren't records.
std::uint32_t ChecksumOf(std::uint32_t length, std::string_view body) {
  std::string number;
  AppendNumber(length, &number);
  return ExtendCrc32c(ExtendCrc32c(0, number), body);
}

// Reads the value of a field, which is empty unless it has a length of its own.
// False: there is none.
bool ReadValue(std::uint32_t tag, std::string_view body,
               CodedInputStream* input, std::string_view* value) {
  std::uint64_t number = 0;
  std::uint32_t length = 0;
  switch (tag & 7) {
    case 0:
      return input->ReadVarint64(&number);
    case 1:
      return input->Skip(8);
    case 5:
      return input->Skip(4);
    case 2: {
      if (!input->ReadVarint32(&length)) return false;
      const auto at = static_cast<std::size_t>(input->CurrentPosition());
      if (length > body.size() - at) return false;
      *value = body.substr(at, length);
      return input->Skip(static_cast<int>(length));
    }
    default:  // Groups: no message here has some.
      return false;
  }
}

// Whether the field of a Call is a message of its own.
bool IsMessage(std::uint32_t tag) {
  const std::uint32_t number = tag >> 3;
  return number == recording::Call::kMetadataFieldNumber ||
         number == recording::Call::kReplyFieldNumber;
}

enum class Depth { kCall, kWithinCall };

// Takes the fields of a message, and of those within it, from `left`. False:
// `body` is no message, or there are more.
bool CountFields(std::string_view body, Depth depth, std::size_t* left) {
  CodedInputStream input(reinterpret_cast<const std::uint8_t*>(body.data()),
                         static_cast<int>(body.size()));
  while (const std::uint32_t tag = input.ReadTag()) {
    if (*left == 0) return false;
    --*left;
    std::string_view value;
    if (!ReadValue(tag, body, &input, &value)) return false;
    if (depth == Depth::kCall && IsMessage(tag) &&
        !CountFields(value, Depth::kWithinCall, left)) {
      return false;
    }
  }
  return input.ConsumedEntireMessage();
}

// False: `body` is no message, or has more than kMaxRecordFields.
bool HasFewFields(std::string_view body) {
  std::size_t left = kMaxRecordFields;
  return CountFields(body, Depth::kCall, &left);
}

recording::Call ToMessage(RecordedCall call) {
  recording::Call message;
  message.set_received_unix_ns(call.received_unix_ns);
  message.set_method(std::move(call.method));
  message.set_request(std::move(call.request));
  message.set_attachment(std::move(call.attachment));
  for (RecordedCall::Entry& entry : call.metadata) {
    recording::Entry* const added = message.add_metadata();
    added->set_name(std::move(entry.name));
    added->set_value(std::move(entry.value));
  }
  for (std::string& name : call.left_out) {
    message.add_left_out(std::move(name));
  }
  message.set_timeout_ns(call.timeout_ns);
  message.set_peer(std::move(call.peer));
  message.set_fraction(call.fraction);
  message.set_status(call.status);
  message.set_error(std::move(call.error));
  message.set_latency_ns(call.latency_ns);
  if (call.reply) {
    message.mutable_reply()->set_message(std::move(call.reply->message));
    message.mutable_reply()->set_attachment(std::move(call.reply->attachment));
  }
  return message;
}

RecordedCall FromMessage(recording::Call message) {
  RecordedCall call;
  call.received_unix_ns = message.received_unix_ns();
  call.method = std::move(*message.mutable_method());
  call.request = std::move(*message.mutable_request());
  call.attachment = std::move(*message.mutable_attachment());
  for (recording::Entry& entry : *message.mutable_metadata()) {
    call.metadata.push_back(
        {std::move(*entry.mutable_name()), std::move(*entry.mutable_value())});
  }
  for (std::string& name : *message.mutable_left_out()) {
    call.left_out.push_back(std::move(name));
  }
  call.timeout_ns = message.timeout_ns();
  call.peer = std::move(*message.mutable_peer());
  call.fraction = message.fraction();
  call.status = message.status();
  call.error = std::move(*message.mutable_error());
  call.latency_ns = message.latency_ns();
  if (message.has_reply()) {
    recording::Reply* const reply = message.mutable_reply();
    call.reply = {std::move(*reply->mutable_message()),
                  std::move(*reply->mutable_attachment())};
  }
  return call;
}

}  // namespace

std::size_t RecordedCall::ByteSize() const {
  std::size_t size = sizeof(*this) + method.size() + request.size() +
                     attachment.size() + peer.size() + error.size();
  for (const Entry& entry : metadata) {
    size += sizeof(entry) + entry.name.size() + entry.value.size();
  }
  for (const std::string& name : left_out) size += sizeof(name) + name.size();
  if (reply) size += reply->message.size() + reply->attachment.size();
  return size;
}

std::string FormatUtc(const char* form, std::chrono::microseconds unix_time) {
  const std::int64_t us = unix_time.count();
  const auto seconds = static_cast<std::time_t>(us / 1'000'000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[64];
  const std::size_t size = std::strftime(text, sizeof(text), form, &utc);
  std::snprintf(text + size, sizeof(text) - size, ".%06dZ",
                static_cast<int>(us % 1'000'000));
  return text;
}

std::string EncodeRecordingHead() {
  std::string head(kMagic);
  AppendNumber(kVersion, &head);
  AppendNumber(0, &head);
  return head;
}

bool IsCutRecordingHead(std::string_view bytes) {
  const std::string head = EncodeRecordingHead();
  const auto [rest, ignored] =
      std::mismatch(bytes.begin(), bytes.end(), head.begin(), head.end());
  return std::all_of(rest, bytes.end(), [](char byte) { return byte == 0; });
}

Status CheckRecordingHead(std::string_view bytes) {
  if (bytes.size() < kRecordingHeadBytes || !bytes.starts_with(kMagic)) {
    return Damaged("is no recording of calls");
  }
  const std::uint32_t version = ReadNumber(bytes.substr(kMagic.size()));
  if (version == kVersion) return {};
  return Damaged("is a recording of version " + std::to_string(version) +
                 ", and this program knows version " +
                 std::to_string(kVersion) + " only");
}

std::string EncodeRecord(RecordedCall call) {
  const recording::Call message = ToMessage(std::move(call));
  const std::size_t length = message.ByteSizeLong();
  if (length > kMaxRecordBytes) return {};
  const auto short_length = static_cast<std::uint32_t>(length);
  std::string bytes(kRecordHeadBytes, '\0');
  message.AppendToString(&bytes);
  std::string head;
  AppendNumber(short_length, &head);
  AppendNumber(ChecksumOf(short_length,
                          std::string_view(bytes).substr(kRecordHeadBytes)),
               &head);
  bytes.replace(0, kRecordHeadBytes, head);
  if (!HasFewFields(std::string_view(bytes).substr(kRecordHeadBytes))) {
    bytes.clear();
  }
  return bytes;
}

Expected<RecordHead, Status> DecodeRecordHead(std::string_view bytes) {
  const RecordHead head{.length = ReadNumber(bytes),
                        .checksum = ReadNumber(bytes.substr(4))};
  if (head.length == 0 || head.length > kMaxRecordBytes) {
    return Damaged("its length of " + std::to_string(head.length) +
                   " bytes can't be");
  }
  return head;
}

bool HasRightChecksum(const RecordHead& head, std::string_view body) {
  return ChecksumOf(head.length, body) == head.checksum;
}

Expected<RecordedCall, Status> DecodeRecordBody(const RecordHead& head,
                                                std::string_view body) {
  if (!HasRightChecksum(head, body)) return Damaged("its checksum is wrong");
  recording::Call message;
  if (!HasFewFields(body) ||
      !message.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return Damaged("it is no flare.recording.Call");
  }
  return FromMessage(std::move(message));
}

}  // namespace flare
