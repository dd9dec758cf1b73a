#include "flare/rpc/client/channel_list.h"

#include <unordered_set>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare::rpc {
namespace {

// Never destroyed: channels may outlive static objects.
struct ChannelList {
  ThreadMutex mutex;
  std::unordered_set<ListedChannel*> channels FLARE_GUARDED_BY(mutex);
};

ChannelList& TheList() {
  static auto* const list = new ChannelList();
  return *list;
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
  list.channels.erase(channel);
}

std::vector<ChannelState> DescribeChannels(std::size_t most, std::size_t* all) {
  ChannelList& list = TheList();
  std::vector<ChannelState> states;
  ScopedLock guard(list.mutex);
  *all = list.channels.size();
  for (ListedChannel* const channel : list.channels) {
    if (states.size() == most) break;
    states.push_back(channel->Describe());
  }
  return states;
}

}  // namespace flare::rpc
