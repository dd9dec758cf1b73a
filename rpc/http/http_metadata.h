// Metadata as fields of an HTTP message. Values of names that end in "-bin" are
// base64, as in gRPC; several may be in one field, separated by commas.
//
// Thread-safe; nothing blocks.
#ifndef FLARE_RPC_HTTP_HTTP_METADATA_H_
#define FLARE_RPC_HTTP_HTTP_METADATA_H_

#include <memory>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

// Appends a field for each entry: a CRLF, name and value. Control bytes in
// values, which come from peers only, become blanks, so that none can forge a
// field.
void AppendMetadata(const Metadata& metadata, BufferBuilder* out);

// Reads a message's fields, as HttpHead::fields has them, except those that
// HTTP or the library has for itself (IsReservedMetadata()). *metadata stays
// null if there are no others. Returns an empty text, or which limit they
// exceed.
[[nodiscard]] std::string ReadMetadata(std::string_view fields,
                                       const MetadataLimits& limits,
                                       std::unique_ptr<Metadata>* metadata);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_METADATA_H_
