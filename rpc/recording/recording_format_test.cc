// The bytes of recordings, whole, cut and damaged.
#include "flare/rpc/recording/recording_format.h"

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/crc32c.h"
#include "flare/rpc/recording/recording_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

RecordedCall FullCall() {
  RecordedCall call;
  call.received_unix_ns = 1'796'083'200'000'000'001;
  call.method = "shop.Catalog.Search";
  call.request = std::string("\0\xff request", 10);
  call.attachment = std::string("\0attached", 9);
  call.metadata = {{"x-user", "7"}, {"x-user", "8"}, {"id-bin", "\xff"}};
  call.left_out = {"authorization"};
  call.timeout_ns = 250'000'000;
  call.peer = "10.0.0.1:4711";
  call.fraction = 0.25;
  call.status = 1001;
  call.error = "no such \xff";  // Isn't UTF-8.
  call.latency_ns = 1234;
  call.reply = {.message = "reply", .attachment = "more"};
  return call;
}

void ExpectSame(const RecordedCall& got, const RecordedCall& want) {
  EXPECT_EQ(got.received_unix_ns, want.received_unix_ns);
  EXPECT_EQ(got.method, want.method);
  EXPECT_EQ(got.request, want.request);
  EXPECT_EQ(got.attachment, want.attachment);
  ASSERT_EQ(got.metadata.size(), want.metadata.size());
  for (std::size_t i = 0; i != got.metadata.size(); ++i) {
    EXPECT_EQ(got.metadata[i].name, want.metadata[i].name);
    EXPECT_EQ(got.metadata[i].value, want.metadata[i].value);
  }
  EXPECT_EQ(got.left_out, want.left_out);
  EXPECT_EQ(got.timeout_ns, want.timeout_ns);
  EXPECT_EQ(got.peer, want.peer);
  EXPECT_EQ(got.fraction, want.fraction);
  EXPECT_EQ(got.status, want.status);
  EXPECT_EQ(got.error, want.error);
  EXPECT_EQ(got.latency_ns, want.latency_ns);
  ASSERT_EQ(got.reply.has_value(), want.reply.has_value());
  if (!got.reply) return;
  EXPECT_EQ(got.reply->message, want.reply->message);
  EXPECT_EQ(got.reply->attachment, want.reply->attachment);
}

std::string Number(std::size_t number) {
  std::string bytes;
  for (int shift = 0; shift != 32; shift += 8) {
    bytes += static_cast<char>(number >> shift);
  }
  return bytes;
}

// A field of protobuf's that has a length.
std::string Field(char tag, const std::string& value) {
  std::string bytes(1, tag);
  std::size_t rest = value.size();
  for (; rest >= 0x80; rest >>= 7) bytes += static_cast<char>(rest | 0x80);
  return bytes + static_cast<char>(rest) + value;
}

// A record of any bytes, with the right checksum.
std::string RecordOf(const std::string& body) {
  const std::string length = Number(body.size());
  return length + Number(ExtendCrc32c(0, length + body)) + body;
}

// A reader's findings in a file.
struct Found {
  std::vector<RecordedCall> calls;
  Status error;
  bool cut_off = false;
};

class RecordingFormatTest : public ::testing::Test {
 protected:
  RecordingFormatTest() {
    std::string folder =
        std::filesystem::temp_directory_path() / "recording_XXXXXX";
    path_ = std::string(mkdtemp(folder.data())) + "/a.calls";
  }
  ~RecordingFormatTest() override {
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
  }

  Found Read(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    Found found;
    auto reader = RecordingReader::Open(path_);
    if (!reader) {
      found.error = reader.error();
      return found;
    }
    while (true) {
      auto call = (*reader)->Next();
      if (!call) {
        found.error = call.error();
        return found;
      }
      if (!*call) break;
      found.calls.push_back(**std::move(call));
    }
    found.cut_off = (*reader)->cut_off();
    const auto again = (*reader)->Next();  // The end is the end.
    EXPECT_TRUE(again && !*again);
    return found;
  }

  std::string path_;
};

TEST_F(RecordingFormatTest, KeepsAllOfACall) {
  const Found found = Read(EncodeRecordingHead() + EncodeRecord(FullCall()) +
                           EncodeRecord(RecordedCall()));
  ASSERT_TRUE(found.error.ok()) << found.error;
  ASSERT_EQ(found.calls.size(), 2u);
  ExpectSame(found.calls[0], FullCall());
  ExpectSame(found.calls[1], RecordedCall());
  EXPECT_FALSE(found.cut_off);
}

TEST_F(RecordingFormatTest, PeersMayBeAnyBytes) {
  RecordedCall call;
  call.peer = "/run/\xff\xfe.sock";  // A path of a Unix socket, no UTF-8.
  const Found found = Read(EncodeRecordingHead() + EncodeRecord(call));
  ASSERT_TRUE(found.error.ok()) << found.error;
  ASSERT_EQ(found.calls.size(), 1u);
  EXPECT_EQ(found.calls[0].peer, call.peer);
}

TEST_F(RecordingFormatTest, HasTheDocumentedBytes) {
  const std::string head = EncodeRecordingHead();
  EXPECT_EQ(head, std::string("flarecal\1\0\0\0\0\0\0\0", 16));
  RecordedCall call;
  call.fraction = 0;
  call.method = "M";
  // Length 3, checksum, field 2 of one byte.
  const std::string record = EncodeRecord(call);
  ASSERT_EQ(record.size(), 11u);
  EXPECT_EQ(record.substr(0, 4), std::string("\3\0\0\0", 4));
  EXPECT_EQ(record.substr(8), "\x12\1M");
}

TEST_F(RecordingFormatTest, IsReadableUpToAnyCut) {
  const std::string first = EncodeRecord(FullCall());
  const std::string whole =
      EncodeRecordingHead() + first + EncodeRecord(FullCall());
  const std::size_t first_end = kRecordingHeadBytes + first.size();
  // File systems may leave zeros in place of the rest where the machine died.
  for (const std::size_t zeros : {0u, 1u, 100u}) {
    for (std::size_t size = 0; size <= whole.size(); ++size) {
      SCOPED_TRACE(std::to_string(size) + '+' + std::to_string(zeros));
      const std::string bytes =
          whole.substr(0, size) + std::string(zeros, '\0');
      const Found found = Read(bytes);
      EXPECT_TRUE(found.error.ok()) << found.error;
      EXPECT_EQ(found.calls.size(), size == whole.size() ? 2u
                                    : size >= first_end  ? 1u
                                                         : 0u);
      EXPECT_EQ(found.cut_off, bytes != EncodeRecordingHead() &&
                                   bytes != EncodeRecordingHead() + first &&
                                   bytes != whole);
    }
  }
}

TEST_F(RecordingFormatTest, NoticesEachChangedByte) {
  const std::string first = EncodeRecord(FullCall());
  const std::string whole =
      EncodeRecordingHead() + first + EncodeRecord(FullCall());
  for (std::size_t i = kRecordingHeadBytes; i != whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    const Found found = Read(damaged);
    // A longer record seems to be cut off.
    EXPECT_TRUE(found.cut_off || found.error.code() == EBADMSG) << i;
    EXPECT_EQ(found.calls.size(),
              i < kRecordingHeadBytes + first.size() ? 0u : 1u);
  }
}

TEST_F(RecordingFormatTest, TellsWhereTheDamageIs) {
  const std::string first = EncodeRecord(FullCall());
  std::string whole = EncodeRecordingHead() + first + EncodeRecord(FullCall());
  whole.back() = static_cast<char>(whole.back() ^ 1);
  EXPECT_EQ(Read(whole).error.message(),
            path_ + ": record 2, at byte " +
                std::to_string(kRecordingHeadBytes + first.size()) +
                ", is damaged: its checksum is wrong");
}

TEST_F(RecordingFormatTest, ZerosBeforeOtherBytesAreDamage) {
  const std::string record = EncodeRecord(FullCall());
  const Found found =
      Read(EncodeRecordingHead() + record + std::string(64, '\0') + record);
  EXPECT_EQ(found.calls.size(), 1u);
  EXPECT_THAT(found.error.message(), HasSubstr("its length of 0 bytes"));
  std::string damaged = record;
  damaged.replace(damaged.size() - 4, 4, 4, '\0');
  EXPECT_THAT(Read(EncodeRecordingHead() + damaged + record).error.message(),
              HasSubstr("its checksum is wrong"));
}

TEST_F(RecordingFormatTest, BoundsTheEntriesOfACall) {
  RecordedCall call;
  call.metadata.resize(kMaxRecordFields - 100);
  const Found many = Read(EncodeRecordingHead() + EncodeRecord(call));
  ASSERT_TRUE(many.error.ok()) << many.error;
  EXPECT_EQ(many.calls[0].metadata.size(), call.metadata.size());
  call.metadata.resize(kMaxRecordFields + 1);
  EXPECT_EQ(EncodeRecord(call), "");
  // By another writer.
  std::string body;
  for (std::size_t i = 0; i <= kMaxRecordFields; ++i) {
    body += std::string("\x2a\0", 2);
  }
  EXPECT_THAT(Read(EncodeRecordingHead() + RecordOf(body)).error.message(),
              HasSubstr("it is no flare.recording.Call"));
}

// Unknown ones would take many times their bytes in memory.
TEST_F(RecordingFormatTest, BoundsTheFieldsWithinTheReplyAndEntries) {
  for (const char tag : {'\x2a', '\x6a'}) {  // An entry, the reply.
    std::string most(2 * (kMaxRecordFields - 1), '\x18');  // Field 3, of 24.
    const auto record = [&](const std::string& body) {
      return EncodeRecordingHead() + RecordOf(Field(tag, body));
    };
    EXPECT_EQ(Read(record(most)).calls.size(), 1u);
    EXPECT_THAT(Read(record(most + "\x18\x18")).error.message(),
                HasSubstr("it is no flare.recording.Call"));
    EXPECT_EQ(Read(record("\x0a\x02x")).error.code(), EBADMSG);  // Cut off.
  }
}

TEST_F(RecordingFormatTest, HugeLengthsTakeNoMemory) {
  const Found found =
      Read(EncodeRecordingHead() + std::string("\xff\xff\xff\xff....", 8));
  EXPECT_EQ(found.error.code(), EBADMSG);
  const Found cut =
      Read(EncodeRecordingHead() + std::string("\0\0\0\x40....", 8) + "x");
  EXPECT_TRUE(cut.error.ok());
  EXPECT_TRUE(cut.cut_off);
}

TEST_F(RecordingFormatTest, RefusesOtherFiles) {
  for (const std::string& bytes :
       {std::string("x"), std::string("flarex"), std::string("flarecalx"),
        std::string(100, 'x'), std::string(100, '\0') + 'x',
        "flare" + std::string(100, '\0') + 'x'}) {
    const Found found = Read(bytes);
    EXPECT_EQ(found.error.code(), EBADMSG);
    EXPECT_THAT(found.error.message(), EndsWith("is no recording of calls"));
  }
  std::string later = EncodeRecordingHead();
  later[8] = 2;
  EXPECT_THAT(Read(later).error.message(),
              HasSubstr("of version 2, and this program knows version 1"));
  const auto missing = RecordingReader::Open(path_ + "x");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ENOENT);
  EXPECT_THAT(missing.error().message(), HasSubstr(path_ + "x"));
}

}  // namespace
}  // namespace flare
