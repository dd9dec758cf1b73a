// Metadata of a call: names and values beside the message, such as credentials
// or the id of a trace. All protocols carry it, each in its own way
// (docs/metadata.md): HTTP as header fields, trpc as trans_info, and so on.
//
//   flare::RpcClientController controller;
//   controller.AddMetadata("authorization", "Bearer " + token);
//   controller.AddMetadata("trace-bin", trace_id.bytes());
//   stub.Echo(request, &controller);
//   if (auto region = controller.GetResponseMetadata().Get("x-region")) { ...
//
// A multimap that keeps the order in which entries were added. Names are lower
// case, and compare as such: upper-case letters in arguments become lower-case
// ones. Use messages and attachments for bulk data.
//
// A plain value: not thread-safe; nothing blocks. Views that it returns are
// valid until it is changed.
#ifndef FLARE_RPC_METADATA_H_
#define FLARE_RPC_METADATA_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/status.h"

namespace flare {

class Metadata {
 public:
  // Limits of Add() and Set() for one object: entries, and bytes of their names
  // and values together. rpc::Limits bounds metadata that peers send.
  static constexpr std::size_t kMaxEntries = 128;
  static constexpr std::size_t kMaxBytes = 16 << 10;

  struct Entry {
    std::string_view name;
    std::string_view value;
  };
  class const_iterator;

  // Adds an entry behind those that exist, also of the same name. Fails, and
  // changes nothing, if
  //   - the name is empty or has other characters than letters, digits, '-',
  //     '_' and '.';
  //   - a protocol needs the name for itself (IsReservedMetadata());
  //   - the value isn't printable ASCII, or begins or ends with a blank, unless
  //     the name ends in "-bin": then it may be any bytes;
  //   - there would be too many entries or bytes.
  // The text says which of these it is; the code is rpc::STATUS_NOT_SUPPORTED.
  flare::Status Add(std::string_view name, std::string_view value);
  // Replaces all entries of that name by this one.
  flare::Status Set(std::string_view name, std::string_view value);
  // Removes all entries of that name. Returns how many there were.
  std::size_t Remove(std::string_view name);
  void Clear();

  // The first value of that name; nullopt if there is none. Linear time.
  std::optional<std::string_view> Get(std::string_view name) const;
  // All of them, in order.
  std::vector<std::string_view> GetAll(std::string_view name) const;
  bool Contains(std::string_view name) const { return Get(name).has_value(); }

  // Iteration over the entries, in order.
  const_iterator begin() const;
  const_iterator end() const;
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  // Bytes of all names and values.
  std::size_t byte_size() const { return bytes_.size(); }

  // For protocols, which have checked count and size before: adds an entry
  // that a peer has sent, whose value may be any bytes. False: the name is none
  // that Add() takes, and nothing was added.
  bool AddReceived(std::string_view name, std::string_view value);
  void Reserve(std::size_t entries, std::size_t bytes);

 private:
  // In bytes_: the name, then the value.
  struct Place {
    std::uint32_t begin;
    std::uint32_t name_size;
    std::uint32_t value_size;
  };

  Entry At(const Place& place) const {
    const std::string_view bytes = bytes_;
    return {bytes.substr(place.begin, place.name_size),
            bytes.substr(place.begin + place.name_size, place.value_size)};
  }
  void Append(std::string_view name, std::string_view value);

  std::string bytes_;
  std::vector<Place> entries_;
};

class Metadata::const_iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Entry;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = Entry;

  const_iterator(const Metadata* metadata, std::size_t index)
      : metadata_(metadata), index_(index) {}

  Entry operator*() const { return metadata_->At(metadata_->entries_[index_]); }
  const_iterator& operator++() {
    ++index_;
    return *this;
  }
  friend bool operator==(const_iterator a, const_iterator b) {
    return a.index_ == b.index_;
  }

 private:
  const Metadata* metadata_;
  std::size_t index_;
};

inline Metadata::const_iterator Metadata::begin() const { return {this, 0}; }
inline Metadata::const_iterator Metadata::end() const {
  return {this, entries_.size()};
}

// Whether values of that name are binary: it ends in "-bin".
inline bool IsBinaryMetadata(std::string_view name) {
  return name.ends_with("-bin");
}

// The bytes of a google.rpc.Status, which say more of a call's failure than its
// status and text. gRPC's libraries read it with the status; over all protocols
// it is an entry like others.
inline constexpr std::string_view kGrpcStatusDetails =
    "grpc-status-details-bin";
// In a reply that fails: when the call may be repeated (docs/retries.md).
inline constexpr std::string_view kRetryPushback = "grpc-retry-pushback-ms";

// Whether protocols need that name, in lower case, for themselves: those of
// fields that frame an HTTP message or say how to read it, such as
// "content-length", and all that begin with "rpc-" or "grpc-", except
// kGrpcStatusDetails.
bool IsReservedMetadata(std::string_view name);

}  // namespace flare

#endif  // FLARE_RPC_METADATA_H_
