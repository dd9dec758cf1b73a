#include "flare/rpc/wire/trpc_meta.h"

#include "flare/rpc/wire/meta_codec.h"
#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

namespace {

using codec::Field;
using fields::FieldReader;
using fields::kLengthDelimited;
using fields::Tag;

constexpr std::uint32_t kRequestTransInfo = 9;
constexpr std::uint32_t kResponseTransInfo = 8;

// Calls f(entry) for each encoded entry of a request's trans_info.
template <class F>
void ForEachTransInfo(std::string_view request, F&& f) {
  FieldReader reader(request);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag != Tag(kRequestTransInfo, kLengthDelimited)) {
      reader.SkipField(tag);
      continue;
    }
    std::string_view entry = reader.Bytes();
    if (reader.error().empty()) f(entry);
  }
}

// func, "/service/method": made of its parts, and taken apart.
struct FuncField {
  static constexpr std::uint32_t kTag = Tag(7, kLengthDelimited);
  static constexpr std::size_t kMost = 1 + fields::kMostOfLength + 2;

  static void Read(std::string_view /*message*/, FieldReader* reader,
                   TrpcRequestMeta* meta, std::string_view* /*fault*/) {
    meta->func = reader->Bytes();
  }

  static std::size_t TextSize(const TrpcRequestMeta& meta) {
    return meta.service.size() + meta.method.size();
  }
  static std::size_t Size(const TrpcRequestMeta& meta) {
    return fields::BytesFieldSize(2 + TextSize(meta));
  }
  static char* Put(const TrpcRequestMeta& meta, char* out) {
    out = fields::PutLength(7, 2 + TextSize(meta), out);
    *out++ = '/';
    out = PutPart(meta.service, out);
    *out++ = '/';
    return PutPart(meta.method, out);
  }

 private:
  static char* PutPart(std::string_view text, char* out) {
    return out + text.copy(out, text.size());
  }
};

// trans_info of the request, which a response repeats. Response's own entries
// are the field behind it.
struct RepeatedTransInfo {
  // Never read.
  static constexpr std::uint32_t kTag = 0;
  static constexpr std::size_t kMost = 0;

  static void Read(std::string_view /*message*/, FieldReader* /*reader*/,
                   TrpcResponseMeta* /*meta*/, std::string_view* /*fault*/) {}

  static std::size_t TextSize(const TrpcResponseMeta& meta) {
    return meta.request.size();  // At most.
  }
  static std::size_t Size(const TrpcResponseMeta& meta) {
    std::size_t size = 0;
    ForEachTransInfo(meta.request, [&](std::string_view entry) {
      size += fields::BytesFieldSize(entry.size());
    });
    return size;
  }
  static char* Put(const TrpcResponseMeta& meta, char* out) {
    ForEachTransInfo(meta.request, [&](std::string_view entry) {
      out = fields::PutBytesField(kResponseTransInfo, entry, out);
    });
    return out;
  }
};

using TrpcRequestCodec = codec::Message<
    Field<1, &TrpcRequestMeta::version>,     //
    Field<2, &TrpcRequestMeta::call_type>,   //
    Field<3, &TrpcRequestMeta::request_id>,  //
    Field<4, &TrpcRequestMeta::timeout>,     //
    Field<5, &TrpcRequestMeta::caller>,      //
    Field<6, &TrpcRequestMeta::callee>,      //
    FuncField,                               //
    Field<8, &TrpcRequestMeta::message_type>,
    codec::MetadataField<kRequestTransInfo, &TrpcRequestMeta::metadata,
                         MetadataValues::kBytes>,
    Field<10, &TrpcRequestMeta::content_type>,      //
    Field<11, &TrpcRequestMeta::content_encoding>,  //
    Field<12, &TrpcRequestMeta::attachment_size>,
    Field<1000, &TrpcRequestMeta::notice>>;

using TrpcResponseCodec = codec::Message<
    Field<1, &TrpcResponseMeta::version>,     //
    Field<2, &TrpcResponseMeta::call_type>,   //
    Field<3, &TrpcResponseMeta::request_id>,  //
    Field<4, &TrpcResponseMeta::ret>,         //
    Field<5, &TrpcResponseMeta::func_ret>,    //
    Field<6, &TrpcResponseMeta::error_msg>,   //
    Field<7, &TrpcResponseMeta::message_type>, RepeatedTransInfo,
    codec::MetadataField<kResponseTransInfo, &TrpcResponseMeta::metadata,
                         MetadataValues::kBytes>,
    Field<9, &TrpcResponseMeta::content_type>,       //
    Field<10, &TrpcResponseMeta::content_encoding>,  //
    Field<12, &TrpcResponseMeta::attachment_size>,
    Field<1000, &TrpcResponseMeta::notice>>;

// Sets the parts of meta->func.
void SplitFunc(TrpcRequestMeta* meta) {
  std::string_view func = meta->func;
  std::size_t slash = func.rfind('/');
  if (func.empty() || func[0] != '/' || slash < 2 || slash + 1 == func.size()) {
    return;
  }
  meta->service = func.substr(1, slash - 1);
  meta->method = func.substr(slash + 1);
}

}  // namespace

std::string_view DecodeTrpcRequest(std::string_view bytes,
                                   TrpcRequestMeta* meta) {
  meta->bytes = bytes;
  const std::string_view error = TrpcRequestCodec::Decode(bytes, meta);
  SplitFunc(meta);
  return error;
}

std::string_view DecodeTrpcResponse(std::string_view bytes,
                                    TrpcResponseMeta* meta) {
  return TrpcResponseCodec::Decode(bytes, meta);
}

bool TrpcRequestHasNotice(std::string_view bytes) {
  return fields::HasField(Tag(1000, fields::kVarint), bytes);
}

std::size_t TrpcRequestSize(const TrpcRequestMeta& meta) {
  return TrpcRequestCodec::Size(meta);
}

std::size_t TrpcResponseSize(const TrpcResponseMeta& meta) {
  return TrpcResponseCodec::Size(meta);
}

std::size_t TrpcRequestBound(const TrpcRequestMeta& meta) {
  return TrpcRequestCodec::Bound(meta);
}

std::size_t TrpcResponseBound(const TrpcResponseMeta& meta) {
  return TrpcResponseCodec::Bound(meta);
}

char* EncodeTrpcRequest(const TrpcRequestMeta& meta, char* out) {
  return TrpcRequestCodec::Encode(meta, out);
}

char* EncodeTrpcResponse(const TrpcResponseMeta& meta, char* out) {
  return TrpcResponseCodec::Encode(meta, out);
}

}  // namespace flare::rpc
