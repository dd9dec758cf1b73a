// The resolver "list": addresses and host names in the channel's URI.

#ifndef FLARE_RPC_NAMING_LIST_RESOLUTION_H_
#define FLARE_RPC_NAMING_LIST_RESOLUTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/name_resolution.h"
#include "flare/rpc/naming/background_resolution.h"

namespace flare::rpc {

inline constexpr std::uint32_t kMaxWeight = 65535;

// One server, or one name of several, in a list.
struct ListEntry {
  std::string name;
  bool literal = false;  // An address, not a name to look up.
  std::uint32_t weight = 1;
  std::string zone;
  std::map<std::string, std::string> tags;
  std::vector<Endpoint> endpoints;
  flare::Status unknown;  // Why there are none, if that may change.
};
using ListEntries = std::vector<ListEntry>;

// Reads "10.0.0.1:5;weight=3;zone=a;tag.env=new" and the like. Looks nothing
// up, so mistakes in host names aren't found yet. Doesn't block.
Expected<ListEntry, flare::Status> ReadListEntry(std::string_view text);

using LookupResult = Expected<std::vector<Endpoint>, flare::Status>;

// The addresses of "host:port" that there is a route to. Blocks as io::Resolve.
LookupResult LookUpHost(std::string_view name);

// The entry of a name has these addresses, or, if these aren't known now, gets
// its `unknown`. Fails if the name, or its port, can't be right ever.
flare::Status FillIn(LookupResult found, ListEntry* entry);

class ListResolution : public BackgroundResolution {
 public:
  ListResolution(ListEntries entries, const UpdateInterval& interval);

  bool IsStatic() const override { return all_literal_; }

 protected:
  void Refresh() override { RefreshNames(); }
  // Looks all names up again; those that aren't found keep their addresses.
  // False: the gate has closed.
  bool RefreshNames();

  const ListEntries& entries() const { return entries_; }
  void SetEntries(ListEntries entries);
  // Why the entries are older than they should be; ok: they aren't.
  void SetSourceFailure(flare::Status failure);

 private:
  void Publish();

  const bool all_literal_;
  // Changed by refreshes only.
  ListEntries entries_;
  flare::Status source_failure_;
};

// Fails if `address` can't be read, or hosts aren't known now. In the latter
// case *later, unless null, has the other servers and looks those up again.
Resolution ResolveList(std::string_view address,
                       std::shared_ptr<NameResolution>* later,
                       const UpdateInterval& interval);

// See SetHostLookupForTesting.
void SetHostLookup(
    std::function<LookupResult(std::string_view host_and_port)> lookup);

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAMING_LIST_RESOLUTION_H_
