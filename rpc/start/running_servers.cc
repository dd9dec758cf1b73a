#include "flare/rpc/start/running_servers.h"

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare::rpc {

struct RunningServer::All {
  ThreadMutex lock;
  IntrusiveList<RunningServer> servers FLARE_GUARDED_BY(lock);
};

// Never destroyed: a server may live until the process has ended.
RunningServer::All& RunningServer::TheAll() {
  static auto* const all = new All();
  return *all;
}

bool RunningServer::Any() {
  All& all = TheAll();
  ScopedLock guard(all.lock);
  return !all.servers.empty();
}

void RunningServer::StopAll() {
  All& all = TheAll();
  ScopedLock guard(all.lock);
  for (RunningServer& server : all.servers) server.StopAtOnce();
}

void RunningServer::Add() {
  All& all = TheAll();
  ScopedLock guard(all.lock);
  all.servers.PushBack(this);
}

void RunningServer::Remove() {
  All& all = TheAll();
  ScopedLock guard(all.lock);
  all.servers.Remove(this);
}

}  // namespace flare::rpc
