#include "flare/rpc/wire/baidu_std_frame.h"

#include <cstring>
#include <utility>

#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/framing.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {

namespace {

// With which a brpc server refuses a call before it gets to the service, and
// for a reason that another server may not have. Services use brpc's other
// codes, too, above all 1003 (bad request) and 2001 (internal).
constexpr int kBrpcNoService = 1001;
constexpr int kBrpcNoMethod = 1002;
constexpr int kBrpcOvercrowded = 1011;
constexpr int kBrpcStopping = 2003;
constexpr int kBrpcLimitReached = 2004;

// The code for a caller of brpc in place of `status`; 0: none.
int BrpcCodeFor(int status, FailureDetail detail) {
  if (detail == FailureDetail::kNoService) return kBrpcNoService;
  if (status == STATUS_SERVICE_NOT_FOUND) return kBrpcNoService;
  if (status == STATUS_METHOD_NOT_FOUND) return kBrpcNoMethod;
  return 0;
}

}  // namespace

CutResult BaiduStdFrame::Read(std::string_view bytes, std::size_t* need,
                              std::string* error) {
  CutResult result = MatchHeader(bytes, kMagic, kHeaderSize, need);
  if (result == CutResult::kNotMine) [[unlikely]] {
    result = MatchHeader(bytes, kStreamMagic, kHeaderSize, need);
    is_stream = true;
  }
  if (result != CutResult::kMessage) return result;
  size = ReadBigEndian32(bytes.data() + 4);
  meta_size = ReadBigEndian32(bytes.data() + 8);
  if (meta_size > size) {
    *error = "a meta of " + std::to_string(meta_size) +
             " bytes in a packet with " + std::to_string(size);
    return CutResult::kError;
  }
  return CutResult::kMessage;
}

char* PutBaiduStdHeader(std::string_view magic, std::size_t meta_size,
                        std::size_t size, char* out) {
  std::memcpy(out, magic.data(), magic.size());
  return PutBigEndian32(meta_size, PutBigEndian32(size, out + magic.size()));
}

void AppendBaiduStd(const BaiduStdMeta& meta, OutboundBody&& body,
                    Buffer&& attachment, BufferBuilder* out) {
  const std::size_t meta_size = BaiduStdMetaSize(meta);
  const std::size_t size = meta_size + body.size() + attachment.size();
  const auto put_head = [&](char* at) {
    return EncodeBaiduStdMeta(
        meta, PutBaiduStdHeader(BaiduStdFrame::kMagic, meta_size, size, at));
  };
  AppendFrame(BaiduStdFrame::kHeaderSize + meta_size, put_head, std::move(body),
              std::move(attachment), out);
}

bool IsFromBaiduStdService(int code) {
  switch (code) {
    case kBrpcNoService:
    case kBrpcNoMethod:
    case kBrpcOvercrowded:
    case kBrpcStopping:
    case kBrpcLimitReached:
      return false;
    default:
      return IsFromService(code);
  }
}

void SetBaiduStdOutcome(int status, FailureDetail detail, std::string_view text,
                        std::string* scratch, BaiduStdMeta* meta) {
  meta->has_response = true;
  meta->error_code = status;
  if (detail == FailureDetail::kStopping) {
    meta->error_code = kBrpcStopping;
  } else if (const int code = BrpcCodeFor(status, detail)) [[unlikely]] {
    meta->error_code = code;
    meta->own_error_code = status;
  }
  meta->error_text = AsUtf8(CutUtf8(text, kMaxErrorText), scratch);
}

}  // namespace flare::rpc
