// The bytes of a recording: a head, then records, each with its length and a
// checksum, so that a file without its end can be read up to there.
// docs/record_replay.md describes the form.
//
// Plain functions: thread-safe; nothing blocks.
#ifndef FLARE_RPC_RECORDING_RECORDING_FORMAT_H_
#define FLARE_RPC_RECORDING_RECORDING_FORMAT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/recording/recorded_call.h"

namespace flare {

// The end of the names of files. Before it are the time of the beginning and
// the process, "20261201T001500.000000Z-4711": names sort by age.
inline constexpr std::string_view kRecordingSuffix = ".calls";

inline constexpr std::size_t kRecordingHeadBytes = 16;
inline constexpr std::size_t kRecordHeadBytes = 8;
// In UTC, in the form of strftime() with the fraction of the second behind it:
// "20261201T001500.000000Z" for "%Y%m%dT%H%M%S".
std::string FormatUtc(const char* form, std::chrono::microseconds unix_time);

// A longer record is damaged.
inline constexpr std::uint32_t kMaxRecordBytes = 1u << 30;
// Those of entries of metadata, and of the reply, are counted, too. Reading
// takes memory for each, however short it is: a record with more is damaged.
inline constexpr std::size_t kMaxRecordFields = 1 << 16;

// The first bytes of a file.
std::string EncodeRecordingHead();
// Whether `bytes`, kRecordingHeadBytes at most, are a beginning of a head, with
// zeros, if any, in place of the rest.
bool IsCutRecordingHead(std::string_view bytes);
// Fails with EBADMSG if `bytes` begin no recording, or one of another version.
Status CheckRecordingHead(std::string_view bytes);

// A record with its head. Empty: it would be longer than kMaxRecordBytes, or
// have more than kMaxRecordFields.
std::string EncodeRecord(RecordedCall call);

struct RecordHead {
  std::uint32_t length = 0;  // The body's.
  std::uint32_t checksum = 0;
};
// Reads kRecordHeadBytes bytes. Fails with EBADMSG and the fault.
Expected<RecordHead, Status> DecodeRecordHead(std::string_view bytes);
bool HasRightChecksum(const RecordHead& head, std::string_view body);
// Fails with EBADMSG, also for another checksum.
Expected<RecordedCall, Status> DecodeRecordBody(const RecordHead& head,
                                                std::string_view body);

}  // namespace flare

#endif  // FLARE_RPC_RECORDING_RECORDING_FORMAT_H_
