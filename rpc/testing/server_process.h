// A server of another project, as a process, for tests.
//
//   class RedisProcess : public ServerProcess { ... Spawn({kRedis, ...}) ... };

#ifndef FLARE_RPC_TESTING_SERVER_PROCESS_H_
#define FLARE_RPC_TESTING_SERVER_PROCESS_H_

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/fd.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

// It is to listen at an address of the loopback network that nobody else uses,
// so that its ports are free again when it is started again.
class ServerProcess {
 public:
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() {
    Kill();
    std::filesystem::remove_all(folder_);
  }

  const std::string& host() const { return host_; }
  // For its files; goes with this object.
  const std::string& folder() const { return folder_; }

  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  // In between it is as if it were cut off: nothing is answered.
  void Pause() { kill(pid_, SIGSTOP); }
  void Resume() { kill(pid_, SIGCONT); }

 protected:
  ServerProcess() {
    std::random_device random;
    host_ = "127." + std::to_string(1 + random() % 250) + "." +
            std::to_string(random() % 256) + "." +
            std::to_string(1 + random() % 250);
    // Short enough for a Unix socket in it.
    std::string name = "/tmp/flare_server_XXXXXX";
    folder_ = mkdtemp(name.data());
  }

  // Starts the program, the first of `arguments`. It writes to log().
  void Spawn(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      posix_spawn_file_actions_addopen(&actions, fd, log().c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    }
    ASSERT_EQ(
        posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ),
        0);
    posix_spawn_file_actions_destroy(&actions);
  }
  // Blocks the thread until it accepts connections there.
  void AwaitListening(const Endpoint& at) const {
    ASSERT_TRUE(fiber::testing::Eventually([&] { return Accepts(at); }))
        << "the server doesn't start: " << log();
  }

  std::string log() const { return folder_ + "/log"; }

 private:
  static bool Accepts(const Endpoint& at) {
    sockaddr_storage address;
    const socklen_t size = at.ToSockaddr(&address);
    const io::UniqueFd fd(
        socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                   size) == 0;
  }

  std::string host_;
  std::string folder_;
  pid_t pid_ = 0;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_SERVER_PROCESS_H_
