// SIGINT, SIGQUIT and SIGTERM as an event that fibers can wait for. The public
// side is WaitForQuitSignal() and CheckForQuitSignal() in init.h.
#ifndef FLARE_RPC_START_QUIT_SIGNAL_H_
#define FLARE_RPC_START_QUIT_SIGNAL_H_

namespace flare::rpc {

// The functions of init.h, which describes them.
void AwaitQuitSignal();
bool HasQuitSignalCome();

// From here on signals wake nobody who waits for them; CheckForQuitSignal()
// still tells. Called by flare::Start() before it ends the runtime.
void EndQuitSignalWaits();

// Puts back the signals' actions of before the first WaitForQuitSignal() or
// CheckForQuitSignal(), and forgets the signals that came. Called by
// flare::Start() at its end; nobody may wait any more.
void ForgetQuitSignals();

}  // namespace flare::rpc

#endif  // FLARE_RPC_START_QUIT_SIGNAL_H_
