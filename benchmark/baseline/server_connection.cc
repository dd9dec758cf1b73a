#include "benchmark/baseline/server_connection.h"

#include <utility>

#include "glog/logging.h"

namespace baseline {

using flare::rpc::CutResult;

namespace {

// The limit of one connection, as flare's default. With more no input is taken.
constexpr std::size_t kMaxPendingCalls = 4096;

}  // namespace

void InlineHandler::Handle(Call* call) {
  // Replies of earlier calls of the batch don't wait for long work.
  call->Serve(Call::Methods::kEcho, work_,
              [call] { call->connection->Flush(); });
  call->Reply();
}

ServerConnection::ServerConnection(
    flare::io::UniqueFd fd, const flare::rpc::ServerProtocolSet& protocols,
    CallHandler* handler, example::RequestCounter* requests)
    : Stream(std::move(fd)), handler_(handler), requests_(requests) {
  protocols_.reserve(protocols.size());
  for (std::size_t i = 0; i != protocols.size(); ++i) {
    protocols_.push_back(protocols.New(i, this));
  }
}

bool ServerConnection::OnData(flare::Buffer& in, std::size_t* need) {
  std::string error;
  CutResult result = CutResult::kMessage;
  while (!in.empty() && !is_closed()) {
    Call* const call = Call::New();
    result = Cut(in, &call->request, need, &error);
    if (result != CutResult::kMessage) {
      call->Recycle();
      if (result == CutResult::kHandled) continue;
      break;
    }
    call->connection = this;
    call->protocol = speaks_;
    ++calls_;
    requests_->Add();
    handler_->Handle(call);
  }
  handler_->EndOfBatch();
  if (result != CutResult::kError && result != CutResult::kNotMine) return true;
  if (speaks_ == nullptr) return false;
  // Valid requests are answered before the connection ends.
  LOG_FIRST_N(WARNING, 10) << "bad input: "
                           << (error.empty()
                                   ? "not " + std::string(speaks_->name())
                                   : error);
  in.Clear();
  EndInput();
  return true;
}

CutResult ServerConnection::Cut(flare::Buffer& in,
                                flare::rpc::InboundRequest* request,
                                std::size_t* need, std::string* error) {
  if (speaks_ != nullptr) return speaks_->Cut(in, request, need, error);
  bool unsure = false;
  for (const auto& protocol : protocols_) {
    const CutResult result = protocol->Cut(in, request, need, error);
    if (result == CutResult::kNotMine) continue;
    if (result == CutResult::kUnsure) {
      unsure = true;
      continue;
    }
    speaks_ = protocol.get();
    return result;
  }
  return unsure ? CutResult::kUnsure : CutResult::kNotMine;
}

void ServerConnection::EndInput() {
  input_over_ = true;
  if (calls_ == 0) CloseAfterSending();
}

bool ServerConnection::WantsInput() const {
  return !input_over_ && calls_ < kMaxPendingCalls;
}

void ServerConnection::CallFinished() {
  --calls_;
  if (is_closed()) {
    if (calls_ == 0) Discard();
  } else if (calls_ == 0 && input_over_) {
    CloseAfterSending();
  } else {
    ResumeInput();
  }
}

void ServerConnection::OnClosed() {
  if (calls_ == 0) Discard();
}

bool ServerConnection::Write(flare::Buffer&& bytes) {
  if (is_closed()) return false;
  Send(std::move(bytes));
  return true;
}

void ServerConnection::Abort(const flare::Status& why) {
  LOG_FIRST_N(WARNING, 10) << "closing a connection: " << why.message();
  Close();
}

}  // namespace baseline
