// Part of the service that a move leaves as it is.
#ifndef FLARE_EXAMPLE_FROM_GRPC_PRICES_H_
#define FLARE_EXAMPLE_FROM_GRPC_PRICES_H_

#include <map>
#include <string>

inline const std::map<std::string, int> kPrices = {{"cup", 8}, {"tea", 5}};

#endif  // FLARE_EXAMPLE_FROM_GRPC_PRICES_H_
