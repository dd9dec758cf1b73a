// The service Fares, which asks several carriers at once.
#ifndef FARES_IMPL_H_
#define FARES_IMPL_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fares.flare.pb.h"
#include "flare/base/string.h"
#include "flare/fiber/task_group.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "glog/logging.h"

class FaresImpl : public fares::SyncFares {
 public:
  // `carriers` are URIs, separated by blanks. `patience` is the longest wait
  // for each of them.
  FaresImpl(const std::string& carriers, std::chrono::milliseconds patience)
      : patience_(patience) {
    for (std::string_view uri : flare::Split(carriers, ' ')) {
      carriers_.emplace_back(std::string(uri));
    }
  }

  void Find(const fares::Trip& trip, fares::Offers* offers,
            flare::RpcServerController*) override {
    std::vector<std::optional<fares::Price>> prices(carriers_.size());
    // Its fibers end before `prices` does, whatever happens here.
    flare::fiber::TaskGroup group;
    for (std::size_t i = 0; i != carriers_.size(); ++i) {
      group.Spawn([&, i] { prices[i] = Ask(i, trip); });
    }
    // It can't fail: a carrier without an answer is no error here.
    static_cast<void>(group.Wait());
    for (const auto& price : prices) {
      if (price) *offers->add_prices() = *price;
    }
    offers->set_missing(static_cast<int>(carriers_.size()) -
                        offers->prices_size());
    std::sort(
        offers->mutable_prices()->begin(), offers->mutable_prices()->end(),
        [](const auto& a, const auto& b) { return a.cents() < b.cents(); });
  }

 private:
  std::optional<fares::Price> Ask(std::size_t i, const fares::Trip& trip) {
    flare::RpcClientController call;
    call.SetTimeout(patience_);
    auto price = carriers_[i].Ask(trip, &call);
    if (price) return *price;
    LOG(WARNING) << "carrier " << i << ": " << price.error().ToString();
    return std::nullopt;
  }

  const std::chrono::milliseconds patience_;
  // Stubs are thread-safe and keep their connections: one for each carrier.
  std::deque<fares::Carrier_SyncStub> carriers_;
};

#endif  // FARES_IMPL_H_
