#include "flare/fiber/fiber.h"

#include "flare/fiber/task.h"
#include "glog/logging.h"

namespace flare {

void Fiber::Start(const Attributes& attributes, Function<void()> f) {
  end_ = MakeRefCounted<End>();
  auto body = [f = std::move(f), end = end_]() mutable {
    f();
    f = nullptr;  // What it captured ends before the join returns.
    end->event.Set();
  };
  if (attributes.scheduling_group) {
    fiber::SpawnTo(*attributes.scheduling_group, std::move(body));
  } else {
    fiber::Spawn(std::move(body));
  }
}

Fiber::~Fiber() {
  CHECK(!joinable()) << "a Fiber must be joined or detached before it is "
                        "destroyed";
}

Fiber& Fiber::operator=(Fiber&& other) noexcept {
  CHECK(!joinable()) << "a Fiber must be joined or detached before it is "
                        "assigned to";
  end_ = std::move(other.end_);
  return *this;
}

Fiber::End* Fiber::MustBeJoinable() const {
  CHECK(joinable()) << "join() of a Fiber that isn't joinable";
  return end_.Get();
}

bool Fiber::Joined(bool ended) {
  if (ended) end_ = nullptr;
  return ended;
}

void Fiber::join() {
  MustBeJoinable()->event.Wait();
  end_ = nullptr;
}

void Fiber::detach() {
  CHECK(joinable()) << "detach() of a Fiber that isn't joinable";
  end_ = nullptr;
}

void StartFiberFromPthread(Function<void()> f) { fiber::Spawn(std::move(f)); }

}  // namespace flare
