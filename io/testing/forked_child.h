// A forked child's use of objects that the parent's runtime works on.

#ifndef FLARE_IO_TESTING_FORKED_CHILD_H_
#define FLARE_IO_TESTING_FORKED_CHILD_H_

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "gtest/gtest.h"

namespace flare::io::testing {

// A child that does `f` aborts, with a message that isn't shown.
template <class F>
void ExpectAbortInChild(F f) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
    f();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_FORKED_CHILD_H_
