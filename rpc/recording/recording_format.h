// The bytes of a recording: a head, then records, each with its length and a
// checksum, so that a file without its end can be read up to there.
// docs/record_replay.md describes the form.
//
// Plain functions: thread-safe; nothing blocks.
#ifndef FLARE_RPC_RECORDING_RECORDING_FORMAT_H_
#define FLARE_RPC_RECORDING_RECORDING_FORMAT_H_

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
// A longer record is damaged.
inline constexpr std::uint32_t kMaxRecordBytes = 1u << 30;

// The first bytes of a file.
std::string EncodeRecordingHead();
// Fails with EBADMSG if `bytes`, kRecordingHeadBytes of them, begin no
// recording, or one of another version.
Status CheckRecordingHead(std::string_view bytes);

// A record with its head. Empty: it would be longer than kMaxRecordBytes.
std::string EncodeRecord(RecordedCall call);

struct RecordHead {
  std::uint32_t length = 0;  // The body's.
  std::uint32_t checksum = 0;
};
// Reads kRecordHeadBytes bytes. Fails with EBADMSG and the fault.
Expected<RecordHead, Status> DecodeRecordHead(std::string_view bytes);
Expected<RecordedCall, Status> DecodeRecordBody(const RecordHead& head,
                                                std::string_view body);

}  // namespace flare

#endif  // FLARE_RPC_RECORDING_RECORDING_FORMAT_H_
