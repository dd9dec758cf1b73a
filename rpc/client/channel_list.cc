#include "flare/rpc/client/channel_list.h"

#include <map>
#include <new>
#include <unordered_set>
#include <utility>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare::rpc {
namespace {

// Never destroyed: channels may outlive static objects.
struct ChannelList {
  ThreadMutex mutex;
  std::unordered_set<ListedChannel*> channels FLARE_GUARDED_BY(mutex);
  // Counters of /metrics must not fall when a channel ends. By URI and server.
  std::map<std::pair<std::string, std::string>, ChannelServerState> ended
      FLARE_GUARDED_BY(mutex);
};

// Servers whose totals are kept.
constexpr std::size_t kMostEnded = 2000;

ChannelList& TheList() {
  static auto* const list = new ChannelList();
  return *list;
}

void KeepTotals(ListedChannel* channel, ChannelList* list)
    FLARE_REQUIRES(list->mutex) {
  const ChannelState state = channel->Describe();
  for (const ChannelServerState& server : state.servers) {
    if (!server.counted || server.calls == 0) continue;
    std::pair<std::string, std::string> key(state.uri, server.server);
    if (list->ended.size() >= kMostEnded && !list->ended.contains(key)) {
      continue;
    }
    ChannelServerState& totals = list->ended[std::move(key)];
    totals.calls += server.calls;
    totals.failures += server.failures;
    totals.ejections += server.ejections;
  }
}

}  // namespace

void AddListedChannel(ListedChannel* channel) {
  ChannelList& list = TheList();
  ScopedLock guard(list.mutex);
  list.channels.insert(channel);
}

void RemoveListedChannel(ListedChannel* channel) {
  ChannelList& list = TheList();
  ScopedLock guard(list.mutex);
  if (list.channels.erase(channel) == 0) return;  // It was never added.
  try {
    KeepTotals(channel, &list);
  } catch (const std::bad_alloc&) {  // Its counts are lost.
  }
}

std::vector<ChannelState> DescribeChannels(std::size_t most, std::size_t* all,
                                           std::vector<ChannelState>* ended) {
  ChannelList& list = TheList();
  std::vector<ChannelState> states;
  ScopedLock guard(list.mutex);
  *all = list.channels.size();
  for (ListedChannel* const channel : list.channels) {
    if (states.size() == most) break;
    states.push_back(channel->Describe());
  }
  if (ended == nullptr) return states;
  for (const auto& [key, totals] : list.ended) {
    ChannelState& state = ended->emplace_back();
    state.uri = key.first;
    state.servers.push_back(totals);
    state.servers.back().server = key.second;
    state.servers.back().counted = true;
  }
  return states;
}

}  // namespace flare::rpc
