// Rules:
//  [TC1] A set of keys never changes: a connection keeps the one that it began
//        with. New files make a new set, for connections to come.
//  [TC2] load_mutex_ is held while files are read, mutex_ for a pointer or a
//        map only. One thread at a time reads; others go on with the old set.
#include "flare/io/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <tuple>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/read_file.h"
#include "flare/base/string.h"
#include "flare/fiber/long_task.h"
#include "flare/fiber/runtime.h"
#include "flare/io/tls_counters.h"
#include "flare/io/tls_session.h"
#include "flare/io/tls_text.h"
#include "glog/logging.h"

namespace flare::io {

using SslContext = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

struct TlsServerKeys {
  struct Entry {
    SslContext context;
    std::vector<std::string> names;
  };
  std::vector<Entry> entries;
  std::string alpn;  // As it is sent.

  SSL_CTX* Find(const std::string& name) const {
    const std::size_t dot = name.find('.');
    const std::string wildcard =
        dot == std::string::npos ? "" : "*" + name.substr(dot);
    for (const std::string* const wanted : {&name, &wildcard}) {
      for (const Entry& entry : entries) {
        if (std::find(entry.names.begin(), entry.names.end(), *wanted) !=
            entry.names.end()) {
          return entry.context.get();
        }
      }
    }
    return nullptr;
  }
};

struct TlsClientKeys {
  SslContext context{nullptr, &SSL_CTX_free};
};

namespace {

constexpr std::size_t kMaxSessions = 4096;

Status BadTls(const std::string& what) {
  std::string why = TakeOpenSslErrors();
  return Status(EINVAL,
                "TLS: " + what + (why.empty() ? "" : ": " + std::move(why)));
}

// Without it OpenSSL's errors for files that aren't there name no file.
Status CheckReadable(const std::string& path, const char* what) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    return Status(EINVAL, std::string("TLS: the ") + what + " " +
                              StatusFromErrno(errno, path).message());
  }
  return Status();
}

void OnMessage(int sent, int /*version*/, int content_type, const void*,
               std::size_t, SSL* ssl, void*) {
  auto* const session = static_cast<TlsSession*>(SSL_get_app_data(ssl));
  if (session != nullptr) session->NoteMessage(sent != 0, content_type);
}

Status UseVersion(SSL_CTX* context, TlsVersion version) {
  SSL_CTX_set_min_proto_version(
      context, version == TlsVersion::k1_3 ? TLS1_3_VERSION : TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE |
                                   SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_msg_callback(context, &OnMessage);
  return Status();
}

Status UseKeyPair(SSL_CTX* context, const TlsKeyPair& pair) {
  if (Status s = CheckReadable(pair.certificate, "certificate"); !s.ok()) {
    return s;
  }
  if (Status s = CheckReadable(pair.key, "key"); !s.ok()) return s;
  if (SSL_CTX_use_certificate_chain_file(context, pair.certificate.c_str()) !=
      1) {
    return BadTls("can't use the certificate " + pair.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context, pair.key.c_str(),
                                  SSL_FILETYPE_PEM) != 1) {
    if (ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH) {
      ERR_clear_error();
      return BadTls("the key " + pair.key +
                    " doesn't belong to the certificate " + pair.certificate);
    }
    return BadTls("can't use the key " + pair.key);
  }
  if (SSL_CTX_check_private_key(context) != 1) {
    ERR_clear_error();
    return BadTls("the key " + pair.key +
                  " doesn't belong to the certificate " + pair.certificate);
  }
  return Status();
}

Status UseRoots(SSL_CTX* context, const std::string& file) {
  if (file.empty()) {
    return SSL_CTX_set_default_verify_paths(context) == 1
               ? Status()
               : BadTls("can't use the system's roots");
  }
  if (Status s = CheckReadable(file, "roots"); !s.ok()) return s;
  return SSL_CTX_load_verify_file(context, file.c_str()) == 1
             ? Status()
             : BadTls("can't use the roots " + file);
}

Status UseCrl(SSL_CTX* context, const std::string& file) {
  if (file.empty()) return Status();
  if (Status s = CheckReadable(file, "revocation list"); !s.ok()) return s;
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  X509_LOOKUP* const lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
  if (lookup == nullptr ||
      X509_load_crl_file(lookup, file.c_str(), X509_FILETYPE_PEM) <= 0) {
    return BadTls("can't use the revocation list " + file);
  }
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
  return Status();
}

std::string AlpnList(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    if (name.empty() || name.size() > 255) continue;
    list += static_cast<char>(name.size());
    list += name;
  }
  return list;
}

int ChooseCertificate(SSL* ssl, int*, void* argument) {
  const auto* const keys = static_cast<const TlsServerKeys*>(argument);
  const char* const name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
  if (name == nullptr) return SSL_TLSEXT_ERR_NOACK;
  SSL_CTX* const context = keys->Find(ToLower(name));
  if (context == nullptr) return SSL_TLSEXT_ERR_NOACK;
  SSL_set_SSL_CTX(ssl, context);
  return SSL_TLSEXT_ERR_OK;
}

int ChooseAlpn(SSL*, const unsigned char** out, unsigned char* out_size,
               const unsigned char* in, unsigned in_size, void* argument) {
  const auto* const keys = static_cast<const TlsServerKeys*>(argument);
  unsigned char* chosen = nullptr;
  const int result = SSL_select_next_proto(
      &chosen, out_size,
      reinterpret_cast<const unsigned char*>(keys->alpn.data()),
      static_cast<unsigned>(keys->alpn.size()), in, in_size);
  if (result != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

// Computations for the ClientHello come next, the signature among them.
int BeforeSignature(SSL*, void*) {
  fiber::CallLookout();
  return 1;
}

// A session that a ticket resumes isn't verified again, and each connection by
// it gets a new ticket: so it would outlive the certificate of its client.
SSL_TICKET_RETURN TakeTicket(SSL*, SSL_SESSION* session, const unsigned char*,
                             std::size_t, SSL_TICKET_STATUS status, void*) {
  if (status != SSL_TICKET_SUCCESS && status != SSL_TICKET_SUCCESS_RENEW) {
    return SSL_TICKET_RETURN_IGNORE_RENEW;
  }
  X509* const client = SSL_SESSION_get0_peer(session);
  if (client != nullptr &&
      X509_cmp_current_time(X509_get0_notAfter(client)) <= 0) {
    return SSL_TICKET_RETURN_IGNORE_RENEW;  // By a whole handshake, if at all.
  }
  return status == SSL_TICKET_SUCCESS ? SSL_TICKET_RETURN_USE
                                      : SSL_TICKET_RETURN_USE_RENEW;
}

// Takes any certificate; SSL_get_verify_result() still tells.
int TakeAny(int, X509_STORE_CTX*) { return 1; }

Status UseClientCertificates(SSL_CTX* context,
                             const TlsServerOptions& options) {
  if (options.client_certificates == ClientCertificates::kIgnore) {
    return Status();
  }
  if (options.client_ca.empty()) {
    return BadTls("client certificates are asked for, but client_ca is empty");
  }
  if (Status s = UseRoots(context, options.client_ca); !s.ok()) return s;
  if (Status s = UseCrl(context, options.crl); !s.ok()) return s;
  SSL_CTX_set_client_CA_list(
      context, SSL_load_client_CA_file(options.client_ca.c_str()));
  if (options.client_certificates == ClientCertificates::kRequire) {
    SSL_CTX_set_verify(
        context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  } else {
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, &TakeAny);
  }
  return Status();
}

Status LoadEntry(const TlsServerOptions& options, const TlsKeyPair& pair,
                 TlsServerKeys* keys) {
  SslContext context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (context == nullptr) return BadTls("can't make a context");
  if (Status s = UseVersion(context.get(), options.min_version); !s.ok()) {
    return s;
  }
  if (Status s = UseKeyPair(context.get(), pair); !s.ok()) return s;
  if (Status s = UseClientCertificates(context.get(), options); !s.ok()) {
    return s;
  }
  static constexpr unsigned char kSessionContext[] = "flare";
  SSL_CTX_set_session_id_context(context.get(), kSessionContext,
                                 sizeof(kSessionContext) - 1);
  // Tickets hold the session; nothing is kept here.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_session_ticket_cb(context.get(), nullptr, &TakeTicket, nullptr);
  // One of TLS 1.3, not two: a connection that is resumed gets its own, and
  // each is some 20 us of work.
  SSL_CTX_set_num_tickets(context.get(), 1);
  SSL_CTX_set_tlsext_servername_callback(context.get(), &ChooseCertificate);
  SSL_CTX_set_tlsext_servername_arg(context.get(), keys);
  SSL_CTX_set_alpn_select_cb(context.get(), &ChooseAlpn, keys);
  SSL_CTX_set_cert_cb(context.get(), &BeforeSignature, nullptr);
  std::vector<std::string> names =
      DnsNamesOf(SSL_CTX_get0_certificate(context.get()));
  keys->entries.push_back({std::move(context), std::move(names)});
  return Status();
}

Expected<std::shared_ptr<const TlsServerKeys>, Status> LoadServerKeys(
    const TlsServerOptions& options) {
  ERR_clear_error();
  if (options.certificates.empty()) {
    return BadTls("a server needs a certificate and its key");
  }
  auto keys = std::make_shared<TlsServerKeys>();
  keys->alpn = AlpnList(options.alpn);
  for (const TlsKeyPair& pair : options.certificates) {
    if (Status s = LoadEntry(options, pair, keys.get()); !s.ok()) return s;
  }
  return std::shared_ptr<const TlsServerKeys>(std::move(keys));
}

int OnNewSession(SSL* ssl, SSL_SESSION* session) {
  static_cast<TlsSession*>(SSL_get_app_data(ssl))->Remember(session);
  return 1;  // It is ours.
}

// The server asks for one.
int BeforeCertificate(SSL* ssl, void*) {
  if (SSL_get_certificate(ssl) == nullptr) {
    static_cast<TlsSession*>(SSL_get_app_data(ssl))->NoteCertificateLacks();
  }
  return 1;
}

Expected<std::shared_ptr<const TlsClientKeys>, Status> LoadClientKeys(
    const TlsClientOptions& options) {
  ERR_clear_error();
  auto keys = std::make_shared<TlsClientKeys>();
  keys->context.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = keys->context.get();
  if (context == nullptr) return BadTls("can't make a context");
  if (Status s = UseVersion(context, options.min_version); !s.ok()) return s;
  if (options.certificate.empty() != options.key.empty()) {
    return BadTls("certificate and key go together");
  }
  if (!options.certificate.empty()) {
    if (Status s = UseKeyPair(context, {options.certificate, options.key});
        !s.ok()) {
      return s;
    }
  }
  if (options.insecure_skip_verify) {
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
  } else {
    if (Status s = UseRoots(context, options.ca); !s.ok()) return s;
    if (Status s = UseCrl(context, options.crl); !s.ok()) return s;
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  }
  SSL_CTX_set_session_cache_mode(
      context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(context, &OnNewSession);
  SSL_CTX_set_cert_cb(context, &BeforeCertificate, nullptr);
  return std::shared_ptr<const TlsClientKeys>(std::move(keys));
}

std::vector<std::string> PathsOf(const TlsServerOptions& options) {
  std::vector<std::string> paths{options.client_ca, options.crl};
  for (const TlsKeyPair& pair : options.certificates) {
    paths.push_back(pair.certificate);
    paths.push_back(pair.key);
  }
  return paths;
}

std::vector<std::string> PathsOf(const TlsClientOptions& options) {
  return {options.ca, options.crl, options.certificate, options.key};
}

// A host without its port and brackets.
std::string HostAlone(const std::string& host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  const std::size_t colon = host.find(':');
  if (colon == std::string::npos ||
      host.find(':', colon + 1) != std::string::npos) {
    return host;  // An IPv6 address has more.
  }
  return host.substr(0, colon);
}

// One worker is left to calls.
std::size_t StepsAtOnce() {
  if (!fiber::IsRuntimeRunning()) return 1;
  return fiber::GetSchedulingGroupCount() * fiber::GetSchedulingGroupSize() - 1;
}

struct SharedClients {
  ThreadMutex mutex;
  std::vector<std::tuple<TlsClientOptions, std::string,
                         std::weak_ptr<TlsClientContext>>>
      known FLARE_GUARDED_BY(mutex);
};

SharedClients& AllClients() {
  static auto* const clients = new SharedClients();
  return *clients;
}

}  // namespace

TlsFiles::TlsFiles(std::vector<std::string> paths) : paths_(std::move(paths)) {
  std::erase(paths_, "");
}

std::vector<std::string> TlsFiles::Versions() const {
  std::vector<std::string> versions;
  for (const std::string& path : paths_)
    versions.push_back(VersionOfFile(path));
  return versions;
}

TlsServerContext::TlsServerContext(const TlsServerOptions& options)
    : options_(options),
      handshake_count_(std::make_shared<std::atomic<std::size_t>>(0)),
      handshakes_(std::make_shared<Handshakes>(StepsAtOnce())),
      reload_gate_(options.reload_interval),
      files_(PathsOf(options)) {}

TlsServerContext::~TlsServerContext() = default;

Expected<std::shared_ptr<TlsServerContext>, Status> TlsServerContext::Create(
    const TlsServerOptions& options) {
  const std::shared_ptr<TlsServerContext> context(
      new TlsServerContext(options));
  {
    const ScopedLock loading(context->load_mutex_);
    context->files_.NoteRead(context->files_.Versions());
  }
  auto keys = LoadServerKeys(options);
  if (!keys) return keys.error();
  const ScopedLock guard(context->mutex_);
  context->keys_ = *std::move(keys);
  return context;
}

void TlsServerContext::CheckFiles() {
  const ScopedLock loading(load_mutex_);
  // A file may have been half written at the last look.
  std::vector<std::string> versions = files_.Versions();
  if (complaint_.empty() && files_.WereRead(versions)) return;
  auto keys = LoadServerKeys(options_);
  if (!keys) {
    if (std::exchange(complaint_, keys.error().message()) != complaint_) {
      LOG(ERROR) << complaint_ << "; the files read before stay in use.";
    }
    return files_.NoteRead(std::move(versions));
  }
  complaint_.clear();
  {
    const ScopedLock guard(mutex_);
    keys_ = *std::move(keys);
  }
  files_.NoteRead(std::move(versions));
  LOG(INFO) << "TLS: read the files of " << options_.certificates[0].certificate
            << " again.";
}

std::shared_ptr<const TlsServerKeys> TlsServerContext::Current() {
  reload_gate_.LookIfDue(this, &TlsServerContext::CheckFiles);
  const ScopedLock guard(mutex_);
  return keys_;
}

// Those that were asked to make way count until they have. While they do, there
// may be as many again.
bool TlsServerContext::CountHandshake() {
  // relaxed, all: a count on its own.
  const std::size_t before =
      handshake_count_->fetch_add(1, std::memory_order_relaxed);
  if (before < options_.max_handshakes) return true;
  if (before / 2 < options_.max_handshakes && handshakes_->MakeRoom()) {
    return true;
  }
  handshake_count_->fetch_sub(1, std::memory_order_relaxed);
  return false;
}

std::unique_ptr<Transport> TlsServerContext::NewTransport() {
  std::shared_ptr<const TlsServerKeys> keys = Current();
  if (!CountHandshake()) {
    TlsCounters::Count(&TlsCountersOf(/*is_server=*/true).refused);
    return nullptr;
  }
  SSL* const ssl = SSL_new(keys->entries[0].context.get());
  if (ssl == nullptr) {
    // relaxed, this and below: as in CountHandshake().
    handshake_count_->fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  }
  std::unique_ptr<Transport> session = TlsSession::Make(
      ssl, {.is_server = true,
            .handshake_timeout_ns = ToNs(options_.handshake_timeout),
            .keys = std::move(keys),
            .handshake_count = handshake_count_,
            .handshakes = handshakes_});
  if (session == nullptr) {
    handshake_count_->fetch_sub(1, std::memory_order_relaxed);
  }
  return session;
}

TlsClientContext::TlsClientContext(const TlsClientOptions& options,
                                   const std::vector<std::string>& alpn)
    : options_(options),
      alpn_(AlpnList(alpn)),
      reload_gate_(options.reload_interval),
      files_(PathsOf(options)) {}

TlsClientContext::~TlsClientContext() {
  const ScopedLock guard(mutex_);
  for (const auto& [key, session] : sessions_) SSL_SESSION_free(session);
}

Expected<std::shared_ptr<TlsClientContext>, Status> TlsClientContext::Get(
    const TlsClientOptions& options, const std::vector<std::string>& alpn) {
  const std::string sent_alpn = AlpnList(alpn);
  SharedClients& all = AllClients();
  const ScopedLock guard(all.mutex);
  std::erase_if(all.known,
                [](const auto& known) { return std::get<2>(known).expired(); });
  for (const auto& [known_options, known_alpn, known] : all.known) {
    if (known_options != options || known_alpn != sent_alpn) continue;
    if (auto context = known.lock()) return context;
  }
  std::shared_ptr<TlsClientContext> context(
      new TlsClientContext(options, alpn));
  {
    const ScopedLock loading(context->load_mutex_);
    context->files_.NoteRead(context->files_.Versions());
  }
  auto keys = LoadClientKeys(options);
  if (!keys) return keys.error();
  {
    const ScopedLock own(context->mutex_);
    context->keys_ = *std::move(keys);
  }
  all.known.emplace_back(options, sent_alpn, context);
  return context;
}

void TlsClientContext::CheckFiles() {
  const ScopedLock loading(load_mutex_);
  std::vector<std::string> versions = files_.Versions();
  if (complaint_.empty() && files_.WereRead(versions)) return;
  auto keys = LoadClientKeys(options_);
  if (!keys) {
    if (std::exchange(complaint_, keys.error().message()) != complaint_) {
      LOG(ERROR) << complaint_ << "; the files read before stay in use.";
    }
    return files_.NoteRead(std::move(versions));
  }
  complaint_.clear();
  const ScopedLock guard(mutex_);
  keys_ = *std::move(keys);
  // Sessions that were verified by other files count no more.
  for (const auto& [key, session] : sessions_) SSL_SESSION_free(session);
  sessions_.clear();
  files_.NoteRead(std::move(versions));
}

std::shared_ptr<const TlsClientKeys> TlsClientContext::Current() {
  reload_gate_.LookIfDue(this, &TlsClientContext::CheckFiles);
  const ScopedLock guard(mutex_);
  return keys_;
}

void TlsClientContext::Remember(const std::string& session_key,
                                const void* keys, ssl_session_st* session) {
  const ScopedLock guard(mutex_);
  if (keys_.get() != keys) {
    SSL_SESSION_free(session);
    return;
  }
  if (sessions_.size() >= kMaxSessions && !sessions_.contains(session_key)) {
    SSL_SESSION_free(sessions_.begin()->second);
    sessions_.erase(sessions_.begin());
  }
  SSL_SESSION*& known = sessions_[session_key];
  if (known != nullptr) SSL_SESSION_free(known);
  known = session;
}

std::unique_ptr<Transport> TlsClientContext::NewTransport(
    const std::string& host, const std::string& session_key) {
  std::shared_ptr<const TlsClientKeys> keys = Current();
  SSL* const ssl = SSL_new(keys->context.get());
  if (ssl == nullptr) return nullptr;
  const std::string name =
      HostAlone(options_.server_name.empty() ? host : options_.server_name);
  const bool is_address = EndpointFromString(name + ":1").has_value() ||
                          EndpointFromString("[" + name + "]:1").has_value();
  bool fits = true;
  if (!is_address && !name.empty()) {
    fits = SSL_set_tlsext_host_name(ssl, name.c_str()) == 1;
  }
  if (!options_.insecure_skip_verify) {
    X509_VERIFY_PARAM* const rules = SSL_get0_param(ssl);
    X509_VERIFY_PARAM_set_hostflags(rules,
                                    X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    fits =
        fits && (is_address ? X509_VERIFY_PARAM_set1_ip_asc(rules, name.c_str())
                            : X509_VERIFY_PARAM_set1_host(rules, name.c_str(),
                                                          name.size())) == 1;
  }
  if (!alpn_.empty()) {
    SSL_set_alpn_protos(ssl,
                        reinterpret_cast<const unsigned char*>(alpn_.data()),
                        static_cast<unsigned>(alpn_.size()));
  }
  if (!fits || (name.empty() && !options_.insecure_skip_verify)) {
    SSL_free(ssl);
    ERR_clear_error();
    return nullptr;
  }
  {
    const ScopedLock guard(mutex_);
    const auto it = sessions_.find(session_key);
    if (it != sessions_.end() && keys_ == keys) {
      SSL_set_session(ssl, it->second);
    }
  }
  return TlsSession::Make(
      ssl, {.keys = keys,
            .remember = [self = shared_from_this(), session_key,
                         keys = keys.get()](SSL_SESSION* session) {
              self->Remember(session_key, keys, session);
            }});
}

}  // namespace flare::io
