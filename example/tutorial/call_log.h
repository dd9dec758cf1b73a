// Logs each call with its outcome.
#ifndef CALL_LOG_H_
#define CALL_LOG_H_

#include <chrono>

#include "flare/rpc/interceptor.h"
#include "glog/logging.h"

class CallLog : public flare::ServerInterceptor {
  void Intercept(flare::InterceptedCall& call,
                 flare::ServerNext& next) override {
    next.Run();  // Returns when the method has answered.
    LOG(INFO) << call.method() << " for " << call.peer().ToString() << ": "
              << (call.failed() ? "failed" : "ok") << ", "
              << std::chrono::duration_cast<std::chrono::microseconds>(
                     call.elapsed())
                     .count()
              << " us";
  }
};

#endif  // CALL_LOG_H_
