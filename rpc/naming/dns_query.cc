#include "flare/rpc/naming/dns_query.h"

#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/io/resolver.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

constexpr std::uint16_t kDnsPort = 53;

// Targets of one SRV answer, which may name thousands. Each one takes two
// look-ups, one after the other.
constexpr std::size_t kMostTargets = 64;

flare::Status NotAQuestion(std::string_view text, const std::string& why) {
  return flare::Status(
      STATUS_INVALID_CHANNEL,
      "\"" + std::string(text) + "\" can't be asked of DNS: " + why);
}

// "10.0.0.53:8600" or "10.0.0.53".
std::optional<Endpoint> ReadNameServer(std::string_view text) {
  auto endpoint = EndpointFromString(text);
  if (!endpoint) {
    endpoint =
        EndpointFromString(std::string(text) + ":" + std::to_string(kDnsPort));
  }
  if (!endpoint || endpoint->family() != AF_INET || endpoint->port() == 0) {
    return std::nullopt;
  }
  return *std::move(endpoint);
}

// One use of the C library's resolver.
class Resolver {
 public:
  // No query begins after `deadline_ns`.
  Resolver(const DnsQuestion& question, std::int64_t deadline_ns)
      : question_(question),
        deadline_ns_(deadline_ns),
        ready_(::res_ninit(&state_) == 0) {
    if (!ready_ || !question.name_server) return;
    sockaddr_storage address;
    question.name_server->ToSockaddr(&address);
    std::memcpy(&state_.nsaddr_list[0], &address, sizeof(sockaddr_in));
    state_.nscount = 1;
  }
  ~Resolver() {
    if (ready_) ::res_nclose(&state_);
  }
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Runs `use(record, message)` for each answer of that type. The answers' time
  // to live is noted.
  template <class F>
  flare::Status Ask(const std::string& name, ns_type type, const F& use) {
    if (!ready_) {
      return flare::Status(EAGAIN, "the C library's resolver can't be set up");
    }
    const std::int64_t left_ns = deadline_ns_ - NowNs();
    if (left_ns <= 0) return TooLate(name);
    // Seconds before a query is repeated.
    state_.retrans = static_cast<int>(
        std::clamp<std::int64_t>(left_ns / kNsPerSecond, 1, state_.retrans));
    const int length =
        ::res_nsearch(&state_, name.c_str(), ns_c_in, type, answer_.data(),
                      static_cast<int>(answer_.size()));
    if (length < 0) return Failure(name);
    ns_msg message;
    if (::ns_initparse(answer_.data(),
                       std::min(length, static_cast<int>(answer_.size())),
                       &message) != 0) {
      return Malformed(name);
    }
    for (int i = 0; i != ns_msg_count(message, ns_s_an); ++i) {
      ns_rr record;
      if (::ns_parserr(&message, ns_s_an, i, &record) != 0) {
        return Malformed(name);
      }
      // Also of the aliases on the way.
      seconds_ = std::min<std::uint32_t>(seconds_, ns_rr_ttl(record));
      if (ns_rr_type(record) == type && !use(record, message)) {
        return Malformed(name);
      }
    }
    return {};
  }

  std::chrono::seconds time_to_live() const {
    return std::chrono::seconds(seconds_);
  }
  // A part of the answer has come: ask again soon.
  void NotePart() { seconds_ = 0; }

 private:
  static flare::Status Malformed(const std::string& name) {
    return flare::Status(
        EBADMSG, "the answer of DNS for \"" + name + "\" can't be read");
  }

  static flare::Status TooLate(const std::string& name) {
    return flare::Status(
        EAGAIN,
        "DNS was too slow: there was no time left to look \"" + name + "\" up");
  }

  flare::Status Failure(const std::string& name) const {
    const std::string failed = "DNS has no answer for \"" + name + "\": ";
    switch (state_.res_h_errno) {
      case HOST_NOT_FOUND:
        return flare::Status(ENOENT, failed + "there is no such name");
      case NO_DATA:
        return flare::Status(ENODATA, failed + "it has no record of that type");
      default:
        return flare::Status(
            EAGAIN,
            failed + "name servers fail or don't answer; see " +
                (question_.name_server ? question_.name_server->ToString()
                                       : std::string("/etc/resolv.conf")));
    }
  }

  const DnsQuestion& question_;
  const std::int64_t deadline_ns_;
  struct __res_state state_ = {};
  const bool ready_;
  std::uint32_t seconds_ = std::numeric_limits<std::uint32_t>::max();
  // The longest message that there is.
  std::vector<unsigned char> answer_ = std::vector<unsigned char>(65536);
};

// Adds the endpoint in an A or AAAA record.
bool AddAddress(const ns_rr& record, std::uint16_t port,
                std::vector<Endpoint>* endpoints) {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  if (ns_rr_type(record) == ns_t_a) {
    auto* const address = reinterpret_cast<sockaddr_in*>(&storage);
    if (ns_rr_rdlen(record) != sizeof(address->sin_addr)) return false;
    address->sin_family = AF_INET;
    std::memcpy(&address->sin_addr, ns_rr_rdata(record),
                sizeof(address->sin_addr));
    length = sizeof(*address);
  } else {
    auto* const address = reinterpret_cast<sockaddr_in6*>(&storage);
    if (ns_rr_rdlen(record) != sizeof(address->sin6_addr)) return false;
    address->sin6_family = AF_INET6;
    std::memcpy(&address->sin6_addr, ns_rr_rdata(record),
                sizeof(address->sin6_addr));
    length = sizeof(*address);
  }
  Endpoint endpoint = Endpoint::FromSockaddr(
      reinterpret_cast<const sockaddr*>(&storage), length);
  endpoint.set_port(port);
  if (std::find(endpoints->begin(), endpoints->end(), endpoint) ==
      endpoints->end()) {
    endpoints->push_back(std::move(endpoint));
  }
  return true;
}

// The addresses of one host as servers. Without an answer about IPv4 they are
// none, so that those known before stay in use. Some name servers never answer
// about IPv6.
flare::Status AddHost(Resolver* resolver, const std::string& host,
                      std::uint16_t port, std::uint32_t weight,
                      std::vector<Peer>* peers) {
  std::vector<Endpoint> endpoints;
  const auto add = [&](const ns_rr& record, const ns_msg&) {
    return AddAddress(record, port, &endpoints);
  };
  flare::Status failure = resolver->Ask(host, ns_t_a, add);
  if (failure.code() == EAGAIN) return failure;
  const flare::Status second = resolver->Ask(host, ns_t_aaaa, add);
  if (second.code() == EAGAIN) resolver->NotePart();
  if (endpoints.empty()) {
    if (failure.ok() || failure.code() == ENODATA) failure = second;
    return !failure.ok() ? failure
                         : flare::Status(ENODATA, "DNS has no address of \"" +
                                                      host + '"');
  }
  for (Endpoint& endpoint : io::WithRoute(std::move(endpoints))) {
    const bool known = std::any_of(
        peers->begin(), peers->end(),
        [&](const Peer& peer) { return peer.endpoint == endpoint; });
    if (known) continue;
    peers->push_back(
        {std::move(endpoint), host + ":" + std::to_string(port), weight});
  }
  return {};
}

struct ServiceRecord {
  std::uint16_t priority = 0;
  std::uint16_t weight = 0;
  std::uint16_t port = 0;
  std::string target;
};

// False: it can't be read.
bool AddService(const ns_rr& record, const ns_msg& message,
                std::vector<ServiceRecord>* services) {
  constexpr std::size_t kBeforeTarget = 6;
  const unsigned char* const data = ns_rr_rdata(record);
  std::array<char, NS_MAXDNAME> target;
  if (ns_rr_rdlen(record) <= kBeforeTarget ||
      ::dn_expand(ns_msg_base(message), ns_msg_end(message),
                  data + kBeforeTarget, target.data(), target.size()) < 0) {
    return false;
  }
  const auto number = [&](std::size_t at) {
    return static_cast<std::uint16_t>(::ns_get16(data + at));
  };
  services->push_back({number(0), number(2), number(4), target.data()});
  return true;
}

// Leaves the services to use first, and not too many.
void KeepFirst(const std::string& name, std::vector<ServiceRecord>* services) {
  std::uint16_t first = services->front().priority;
  for (const auto& service : *services) {
    first = std::min(first, service.priority);
  }
  std::erase_if(*services, [&](const ServiceRecord& service) {
    return service.priority != first;
  });
  if (services->size() <= kMostTargets) return;
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "DNS names " << services->size() << " servers for \""
                 << name << "\"; the first " << kMostTargets << " are used"
                 << LogThrottle::Note(*left_out);
  }
  services->resize(kMostTargets);
}

flare::Status AddServices(Resolver* resolver, const std::string& name,
                          std::vector<Peer>* peers) {
  std::vector<ServiceRecord> services;
  flare::Status failure =
      resolver->Ask(name, ns_t_srv, [&](const ns_rr& r, const ns_msg& m) {
        return AddService(r, m, &services);
      });
  if (!failure.ok()) return failure;
  // A target "." says that there is no such service, port 0 is none.
  std::erase_if(services, [](const ServiceRecord& service) {
    return service.target.empty() || service.target == "." || service.port == 0;
  });
  if (services.empty()) {
    return flare::Status(ENODATA,
                         "DNS says that there is no service \"" + name + '"');
  }
  KeepFirst(name, &services);
  for (const auto& service : services) {
    // A weight of 0 means a small share, not none.
    flare::Status added =
        AddHost(resolver, service.target, service.port,
                std::max<std::uint32_t>(1, service.weight), peers);
    // Its servers must not be missing while it may have some.
    if (added.code() == EAGAIN) return added;
    if (!added.ok()) failure = std::move(added);
  }
  return peers->empty() ? failure : flare::Status();
}

}  // namespace

Expected<DnsQuestion, flare::Status> ReadDnsQuestion(std::string_view text) {
  DnsQuestion question;
  std::string_view rest = text;
  if (const std::size_t slash = text.find('/');
      slash != std::string_view::npos) {
    question.name_server = ReadNameServer(text.substr(0, slash));
    if (!question.name_server) {
      return NotAQuestion(text, "\"" + std::string(text.substr(0, slash)) +
                                    "\" is no IPv4 address of a name server, "
                                    "as in 10.0.0.53:53/echo.example.com:5567");
    }
    rest.remove_prefix(slash + 1);
  }
  if (EndpointFromString(rest)) {
    return NotAQuestion(text, "that is an address; use the resolver \"list\"");
  }
  const std::size_t colon = rest.rfind(':');
  if (colon != std::string_view::npos) {
    question.port = TryParse<std::uint16_t>(rest.substr(colon + 1));
    if (!question.port || *question.port == 0) {
      return NotAQuestion(text, "the port is not in 1..65535");
    }
    rest = rest.substr(0, colon);
  } else if (!rest.starts_with('_')) {
    return NotAQuestion(text,
                        "write host:port, or the name of an SRV record, as in "
                        "_echo._tcp.example.com");
  }
  if (rest.empty() || rest.size() >= NS_MAXDNAME ||
      rest.find_first_of("[]:/, \t;") != std::string_view::npos) {
    return NotAQuestion(text, "'" + std::string(rest) + "' is no host name");
  }
  question.name = std::string(rest);
  return question;
}

Expected<DnsAnswer, flare::Status> AskDns(const DnsQuestion& question,
                                          std::chrono::nanoseconds limit) {
  Resolver resolver(question, SaturatingAdd(NowNs(), ToNs(limit)));
  DnsAnswer answer;
  const flare::Status added =
      question.port ? AddHost(&resolver, question.name, *question.port,
                              /*weight=*/1, &answer.peers)
                    : AddServices(&resolver, question.name, &answer.peers);
  if (!added.ok()) return added;
  answer.time_to_live = resolver.time_to_live();
  return answer;
}

}  // namespace flare::rpc
