// Rules:
//  [TS1] OpenSSL's object belongs to one thread at a time: mutex_. It is held
//        for the records of one read or write, 10 us for 16 KiB, or for a step
//        of the handshake, when nobody else wants it: the connection's flusher
//        sends nothing before its end. Nothing under it blocks or suspends.
//  [TS2] OpenSSL never writes to the socket: it appends records to cipher_. The
//        holder of mutex_ sends them in order: Send(), and the reader for
//        alerts and tickets. So OpenSSL never has to repeat a write.
//  [TS3] Send() reports bytes as taken in proportion to the part of the records
//        that was sent, the last byte at the end: a slow peer's progress shows.
//        The caller passes the others again, of which the first encrypted_ are
//        in cipher_ already.
//  [TS4] A read of the socket that gets less than there was room for has
//        emptied it: OpenSSL's next read within the same call is told to wait,
//        without a system call. The poller's next edge brings the reader back.
//        The input's end has no edge of its own if it came along with bytes: a
//        call that got bytes, but no whole record, reads once more.
//  [TS5] However little data a peer's records have, a Receive() takes
//  kMostBeside
//        more bytes than it has room for, and leaves the rest to the next one:
//        so mutex_ is held for milliseconds at most, and the caller's other
//        work gets its turn. Messages without data, such as changes of keys,
//        cost more than records; a peer that sends many is given up.
//  [TS6] The caller of SendEnd() ends the socket's output next: the kernel
//        keeps close_notify (MSG_MORE) and sends it with the FIN, as one
//        segment, and with the last output if Send() got the same flag.
#include "flare/io/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "flare/base/string.h"
#include "flare/io/tls_text.h"

namespace flare::io {
namespace {

// Encrypted at once, as records of 16 KiB, for one system call.
constexpr std::size_t kMostPlain = 64 << 10;
constexpr std::size_t kRecord = 16 << 10;
// An idle connection keeps no more than this of its buffer.
constexpr std::size_t kKeptCipher = 1 << 10;
// Answers to handshake records, such as refused renegotiations, for a peer that
// doesn't read them. Our own output is a few records at a time.
constexpr std::size_t kMostCipher = 1 << 20;
// Two records and more [TS5].
constexpr std::size_t kMostBeside = 40 << 10;
// Messages that a peer may send beside its data: so many, and one for each so
// many bytes of these. OpenSSL changes its keys after 2^24 records.
constexpr std::uint64_t kFreeMessages = 64;
constexpr std::uint64_t kDataPerMessage = 64 << 10;

TlsSession* SessionOf(BIO* bio) {
  return static_cast<TlsSession*>(BIO_get_data(bio));
}

int ReadBio(BIO* bio, char* to, int size) {
  BIO_clear_retry_flags(bio);
  const int n = SessionOf(bio)->ReadSocket(to, size);
  if (n < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return n;
}

int WriteBio(BIO* bio, const char* from, int size) {
  BIO_clear_retry_flags(bio);
  return SessionOf(bio)->WriteCipher(from, size);
}

long ControlBio(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* MakeMethod() {
  BIO_METHOD* const method =
      BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "flare");
  if (method == nullptr) throw std::bad_alloc();
  BIO_meth_set_read(method, &ReadBio);
  BIO_meth_set_write(method, &WriteBio);
  BIO_meth_set_ctrl(method, &ControlBio);
  return method;
}

std::size_t SizeOf(const iovec* pieces, int count) {
  std::size_t size = 0;
  for (int i = 0; i != count; ++i) size += pieces[i].iov_len;
  return size;
}

BIO* NewBio(TlsSession* session) {
  static const BIO_METHOD* const method = MakeMethod();
  BIO* const bio = BIO_new(method);
  if (bio == nullptr) throw std::bad_alloc();
  BIO_set_data(bio, session);
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace

std::unique_ptr<TlsSession> TlsSession::Make(SSL* ssl, Setup setup) {
  try {
    return std::unique_ptr<TlsSession>(new TlsSession(ssl, std::move(setup)));
  } catch (const std::bad_alloc&) {
    SSL_free(ssl);
    return nullptr;
  }
}

TlsSession::TlsSession(SSL* ssl, Setup setup)
    : setup_(std::move(setup)),
      ssl_(ssl),
      counted_(setup_.handshake_count != nullptr) {
  BIO* const bio = NewBio(this);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, this);
  setup_.is_server ? SSL_set_accept_state(ssl) : SSL_set_connect_state(ssl);
}

TlsSession::~TlsSession() {
  EndHandshake();
  CountOutcome(&TlsCounters::abandoned);
  // Else a session whose connection broke could not be resumed.
  SSL_set_quiet_shutdown(ssl_, 1);
  SSL_set_shutdown(ssl_, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
  SSL_free(ssl_);
}

int TlsSession::ReadSocket(char* to, int size) FLARE_NO_THREAD_SAFETY_ANALYSIS {
  if (TooManyMessages()) {  // [TS5]
    errno = EPROTO;
    return -1;
  }
  paused_ = !drained_ && taken_ >= may_take_;
  if (drained_ || paused_) {  // [TS4] [TS5]
    errno = EAGAIN;
    return -1;
  }
  const ssize_t n =
      ::recv(fd_, to, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (n == 0) eof_ = true;
  if (n < 0) {
    if (errno == EINTR) errno = EAGAIN;
    if (errno == EAGAIN) {
      drained_ = true;
    } else {
      read_error_ = errno;
    }
    return -1;
  }
  drained_ = n < size && n != 0;
  got_bytes_ = got_bytes_ || n != 0;
  taken_ += static_cast<std::size_t>(n);
  for (ssize_t i = 0; i < n && first_count_ != 2; ++i) {
    first_bytes_[first_count_++] = static_cast<unsigned char>(to[i]);
  }
  return static_cast<int>(n);
}

int TlsSession::WriteCipher(const char* from,
                            int size) FLARE_NO_THREAD_SAFETY_ANALYSIS {
  if (cipher_.size() > kMostCipher) {
    errno = ENOBUFS;
    return -1;
  }
  try {
    cipher_.append(from, static_cast<std::size_t>(size));  // [TS2]
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return -1;
  }
  return size;
}

Transport::Progress TlsSession::Handshake() {
  const ScopedLock guard(mutex_);
  if (input_ == Input::kBroken) return Progress::kFailed;
  drained_ = false;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  const int error = SSL_get_error(ssl_, result);
  if (result == 1) {
    NoteHandshake();
  } else if (error != SSL_ERROR_WANT_READ) {
    failure_ = Status(
        EPROTO, "TLS: " + (eof_ ? std::string("the peer ended the connection "
                                              "within the handshake; does it "
                                              "speak TLS on this port?")
                                : DescribeFailure()));
    input_ = Input::kBroken;
  }
  const bool sent = FlushCipher() == 0;
  if (input_ == Input::kBroken || (!sent && errno != EAGAIN)) {
    if (failure_.ok()) failure_ = StatusFromErrno(errno, "TLS handshake");
    EndHandshake();
    const bool peer_left = eof_ || read_error_ != 0 || input_ != Input::kBroken;
    CountOutcome(peer_left ? &TlsCounters::abandoned : &TlsCounters::failed);
    return Progress::kFailed;
  }
  // Bytes that the socket doesn't take now are sent by the next event of it, or
  // by Send().
  if (result != 1) return Progress::kWaiting;
  EndHandshake();
  CountOutcome(SSL_session_reused(ssl_) == 1 ? &TlsCounters::resumed
                                             : &TlsCounters::full);
  // relaxed: SendEnd() by another thread may miss it, and tells no end then.
  secure_.store(true, std::memory_order_relaxed);
  return Progress::kDone;
}

std::string TlsSession::DescribeFailure() {
  if (read_error_ != 0) {
    ERR_clear_error();
    return StatusFromErrno(read_error_, "read").message();
  }
  // A handshake record or an alert begins so.
  const bool speaks_tls =
      first_count_ != 2 ||
      ((first_bytes_[0] == 0x16 || first_bytes_[0] == 0x15) &&
       first_bytes_[1] == 0x03);
  std::string why = DescribeTlsFailure(ssl_, setup_.is_server);
  if (speaks_tls) return why;
  const auto first = HexOf(first_bytes_[0]);
  const auto second = HexOf(first_bytes_[1]);
  why = "the peer speaks no TLS: what it sent begins with ";
  why.append(first.data(), first.size());
  why += ' ';
  why.append(second.data(), second.size());
  return why;
}

void TlsSession::NoteHandshake() {
  const unsigned char* name = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_, &name, &size);
  if (size != 0) alpn_.assign(reinterpret_cast<const char*>(name), size);
  X509* const certificate = SSL_get1_peer_certificate(ssl_);
  if (certificate == nullptr) return;
  identity_.emplace(
      IdentityOf(certificate, SSL_get_verify_result(ssl_) == X509_V_OK));
  X509_free(certificate);
}

void TlsSession::EndHandshake() {
  if (!std::exchange(counted_, false)) return;
  // relaxed: a count on its own.
  setup_.handshake_count->fetch_sub(1, std::memory_order_relaxed);
}

// The first one counts. A session that never began has none.
void TlsSession::CountOutcome(
    std::atomic<std::uint64_t> TlsCounters::*outcome) {
  if (fd_ < 0 || std::exchange(outcome_counted_, true)) return;
  TlsCounters::Count(&(TlsCountersOf(setup_.is_server).*outcome));
}

// Called within OpenSSL's functions.
void TlsSession::NoteMessage(bool sent,
                             int content_type) FLARE_NO_THREAD_SAFETY_ANALYSIS {
  // relaxed: set by this role.
  if (!secure_.load(std::memory_order_relaxed)) return;
  if (content_type == (sent ? SSL3_RT_ALERT : SSL3_RT_HANDSHAKE)) ++messages_;
}

bool TlsSession::TooManyMessages() const {
  return messages_ > kFreeMessages + data_ / kDataPerMessage;
}

ssize_t TlsSession::Receive(const iovec* pieces, int count) {
  taken_ = 0;
  bool paused = false;
  ssize_t received = 0;
  if (input_ == Input::kOpen) {
    const ScopedLock guard(mutex_);
    got_bytes_ = paused_ = false;
    may_take_ = SizeOf(pieces, count) + kMostBeside;
    received = ReceiveAll(pieces, count);
    if (received == 0 && input_ == Input::kOpen && got_bytes_ && !paused_) {
      received = ReceiveAll(pieces, count);  // [TS4]
    }
    paused = paused_ && input_ == Input::kOpen;
    // Alerts, answers to new keys. Bytes that the socket doesn't take now leave
    // with the next output.
    if (!cipher_.empty()) static_cast<void>(FlushCipher());
  }
  has_more_ = paused || (received != 0 && input_ != Input::kOpen);
  if (received != 0) return received;
  if (input_ == Input::kEnded) return 0;
  errno = input_ == Input::kBroken ? EPROTO : paused ? EINTR : EAGAIN;
  return -1;
}

// Fills `pieces` as far as records have arrived.
ssize_t TlsSession::ReceiveAll(const iovec* pieces, int count) {
  ssize_t received = 0;
  drained_ = false;
  for (int i = 0; i != count; ++i) {
    const std::size_t n = ReceiveSome(pieces[i]);
    received += static_cast<ssize_t>(n);
    if (n != pieces[i].iov_len) break;
  }
  return received;
}

std::size_t TlsSession::ReceiveSome(const iovec& piece) {
  std::size_t received = 0;
  while (received != piece.iov_len) {
    std::size_t n = 0;
    ERR_clear_error();
    const int result =
        SSL_read_ex(ssl_, static_cast<char*>(piece.iov_base) + received,
                    piece.iov_len - received, &n);
    if (result != 1) {
      EndInput(result);
      break;
    }
    received += n;
    data_ += n;
  }
  got_data_ = got_data_ || received != 0;
  return received;
}

// SSL_read_ex() has no more.
void TlsSession::EndInput(int result) {
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return;
    case SSL_ERROR_ZERO_RETURN:
      input_ = Input::kEnded;
      return;
    default:
      break;
  }
  if (TooManyMessages()) {
    ERR_clear_error();
    failure_ =
        Status(EPROTO,
               "TLS: the peer sends too many messages without data, such "
               "as changes of its keys");
    input_ = Input::kBroken;
    return;
  }
  const bool gone = eof_ || read_error_ == ECONNRESET;
  if (gone && lacks_certificate_ && !got_data_) {
    ERR_clear_error();
    failure_ = Status(ECONNRESET,
                      "TLS: the server has asked for a client certificate, got "
                      "none, and ended the connection: it may require one");
    input_ = Input::kBroken;
    return;
  }
  if (eof_) {
    cut_short_ = true;
    input_ = Input::kEnded;
    ERR_clear_error();
    return;
  }
  failure_ = Status(read_error_ != 0 ? read_error_ : EPROTO,
                    "TLS: " + DescribeFailure());
  input_ = Input::kBroken;
}

ssize_t TlsSession::Send(const iovec* pieces, std::size_t count, int flags) {
  const ScopedLock guard(mutex_);
  if (encrypted_ == 0 && !Encrypt(pieces, count)) {
    errno = EPROTO;
    return -1;
  }
  const std::size_t before = sent_;
  const std::size_t left = cipher_.size() - before;
  if (FlushCipher(flags) == 0) {
    return static_cast<ssize_t>(std::exchange(encrypted_, 0));
  }
  if (encrypted_ == 0 || errno != EAGAIN) return -1;
  const std::size_t taken =
      (encrypted_ - 1) * (sent_ - before) / left;  // [TS3]
  if (taken == 0) return -1;                       // With EAGAIN.
  encrypted_ -= taken;
  return static_cast<ssize_t>(taken);
}

// Makes records of the bytes in `pieces`, up to kMostPlain. Small pieces share
// one.
bool TlsSession::Encrypt(const iovec* pieces, std::size_t count) {
  char record[kRecord];
  std::size_t filled = 0;
  for (std::size_t i = 0; i != count && encrypted_ + filled < kMostPlain; ++i) {
    const char* data = static_cast<const char*>(pieces[i].iov_base);
    std::size_t left =
        std::min(pieces[i].iov_len, kMostPlain - encrypted_ - filled);
    while (left != 0) {
      if (filled == 0 && (left >= kRecord || i + 1 == count)) {
        const std::size_t n = std::min(left, kRecord);
        if (!WriteRecord(data, n)) return false;
        data += n;
        left -= n;
        continue;
      }
      const std::size_t n = std::min(left, kRecord - filled);
      std::copy_n(data, n, record + filled);
      filled += n;
      data += n;
      left -= n;
      if (filled == kRecord && !WriteRecord(record, std::exchange(filled, 0))) {
        return false;
      }
    }
  }
  return filled == 0 || WriteRecord(record, filled);
}

bool TlsSession::WriteRecord(const void* data, std::size_t size) {
  std::size_t n = 0;
  ERR_clear_error();
  if (SSL_write_ex(ssl_, data, size, &n) != 1) return false;
  encrypted_ += n;
  return n == size;
}

// 0: the socket has all. -1: not all, or it failed.
ssize_t TlsSession::FlushCipher(int flags) {
  while (sent_ != cipher_.size()) {
    const ssize_t n = ::send(fd_, cipher_.data() + sent_,
                             cipher_.size() - sent_, MSG_NOSIGNAL | flags);
    if (n < 0) {
      if (errno == EINTR) continue;
      return -1;
    }
    sent_ += static_cast<std::size_t>(n);
  }
  sent_ = 0;
  cipher_.clear();
  if (cipher_.capacity() > kKeptCipher) std::string().swap(cipher_);
  return 0;
}

ssize_t TlsSession::SendEnd() {
  // relaxed: see Handshake().
  if (!secure_.load(std::memory_order_relaxed)) return 0;
  const ScopedLock guard(mutex_);
  if (read_error_ != 0) {  // There is nobody to tell: send() would say so.
    errno = EPIPE;
    return -1;
  }
  if (encrypted_ != 0) {  // [TS3]
    errno = EAGAIN;
    return -1;
  }
  if (!std::exchange(ended_, true)) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
    ERR_clear_error();
  }
  return FlushCipher(MSG_MORE);  // [TS6]
}

bool TlsSession::end_sent() const {
  const ScopedLock guard(mutex_);
  return ended_ && cipher_.empty();
}

}  // namespace flare::io
