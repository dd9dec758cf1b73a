// Tests of flare::Start(), each of which may set flags by its arguments.

#ifndef FLARE_RPC_TESTING_START_FIXTURE_H_
#define FLARE_RPC_TESTING_START_FIXTURE_H_

#include <gflags/gflags.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "flare/init.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

// flare::Start() with these arguments.
inline int StartWith(std::vector<std::string> arguments,
                     std::function<int(int, char**)> entry) {
  arguments.insert(arguments.begin(), "the_program");
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  return Start(static_cast<int>(arguments.size()), argv.data(),
               std::move(entry));
}

class StartTest : public ::testing::Test {
 private:
  gflags::FlagSaver saver_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_START_FIXTURE_H_
