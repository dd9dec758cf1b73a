#include "flare/rpc/wire/rpc_meta.h"

#include "flare/rpc/wire/meta_codec.h"
#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

namespace {

using codec::Field;
using codec::kAlways;

using RpcRequestCodec = codec::Message<
    Field<2, &RpcMeta::method_name, kAlways, &RpcMeta::has_method_name>,
    Field<3, &RpcMeta::request_id>,       //
    Field<4, &RpcMeta::timeout>,          //
    Field<5, &RpcMeta::tracing_context>,  //
    Field<6, &RpcMeta::acceptable_compression_algorithms>>;

using RpcResponseCodec =
    codec::Message<Field<1, &RpcMeta::status, kAlways, &RpcMeta::has_status>,
                   Field<2, &RpcMeta::description>,
                   Field<3, &RpcMeta::trace_forcibly_sampled>>;

using RpcMetaCodec = codec::Message<
    Field<1, &RpcMeta::correlation_id, kAlways, &RpcMeta::has_correlation_id>,
    codec::Submessage<5, &RpcMeta::has_request, RpcRequestCodec>,
    codec::Submessage<6, &RpcMeta::has_response, RpcResponseCodec>,
    Field<7, &RpcMeta::method_type, kAlways, &RpcMeta::has_method_type>,
    Field<8, &RpcMeta::flags>,                  //
    Field<9, &RpcMeta::compression_algorithm>,  //
    Field<10, &RpcMeta::attachment_compressed>,
    codec::MetadataField<1001, &RpcMeta::metadata, MetadataValues::kBytes>,
    codec::Rare<Field<1011, &RpcMeta::hello>,   //
                Field<1012, &RpcMeta::window>,  //
                Field<1013, &RpcMeta::credit>,  //
                Field<1014, &RpcMeta::reset>,   //
                Field<1016, &RpcMeta::notice>>,
    Field<1015, &RpcMeta::heeds_resets, codec::kNever>>;

}  // namespace

std::string_view DecodeRpcMeta(std::string_view bytes, RpcMeta* meta) {
  return RpcMetaCodec::Decode(bytes, meta);
}

bool IsStreamMeta(std::string_view bytes) {
  fields::FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag == fields::Tag(7, fields::kVarint)) {
      return reader.Varint() == kMethodTypeStream && reader.error().empty();
    }
    reader.SkipField(tag);
  }
  return false;
}

bool SpeaksOfResets(std::string_view bytes) {
  fields::FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag == fields::Tag(1014, fields::kVarint) ||
        tag == fields::Tag(1015, fields::kVarint) ||
        tag == fields::Tag(1016, fields::kVarint)) {
      return true;
    }
    reader.SkipField(tag);
  }
  return false;
}

std::size_t RpcMetaBound(const RpcMeta& meta) {
  return RpcMetaCodec::Bound(meta);
}

char* EncodeRpcMeta(const RpcMeta& meta, char* out) {
  return RpcMetaCodec::Encode(meta, out);
}

}  // namespace flare::rpc
