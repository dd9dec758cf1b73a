#include "flare/rpc/websocket/websocket_deflate.h"

#include <initializer_list>
#include <string>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

// The answer to a request with these fields; "-": no offer is accepted.
std::string AnswerTo(std::initializer_list<const char*> fields) {
  HttpRequest request;
  for (const char* const field : fields) {
    EXPECT_TRUE(request.headers()->Append("Sec-WebSocket-Extensions", field));
  }
  const auto chosen = ChooseWebSocketDeflate(request);
  return chosen ? WebSocketDeflateAnswer(*chosen) : "-";
}

const std::string kPlain(kWebSocketDeflateOffer);

TEST(WebSocketDeflateTest, AcceptsWhatClientsOffer) {
  // Python's websockets, Firefox, Chromium, and this library.
  EXPECT_EQ(AnswerTo({"permessage-deflate; server_max_window_bits=12; "
                      "client_max_window_bits=12"}),
            kPlain + "; server_max_window_bits=12");
  EXPECT_EQ(AnswerTo({"permessage-deflate"}), kPlain);
  EXPECT_EQ(AnswerTo({"permessage-deflate; client_max_window_bits"}), kPlain);
  EXPECT_EQ(AnswerTo({kPlain.c_str()}), kPlain);
  EXPECT_EQ(AnswerTo({"PerMessage-Deflate ;Server_Max_Window_Bits = \"15\""}),
            kPlain + "; server_max_window_bits=15");
}

TEST(WebSocketDeflateTest, TakesTheFirstGoodOffer) {
  EXPECT_EQ(AnswerTo({}), "-");
  EXPECT_EQ(AnswerTo({"bzip, x-webkit-deflate-frame"}), "-");
  EXPECT_EQ(AnswerTo({"bzip, permessage-deflate; server_max_window_bits=8, "
                      "permessage-deflate; server_max_window_bits=9, "
                      "permessage-deflate"}),
            kPlain + "; server_max_window_bits=9");
  EXPECT_EQ(AnswerTo({"bzip", "permessage-deflate"}), kPlain);
}

TEST(WebSocketDeflateTest, DeclinesWrongOffers) {
  for (const char* const wrong :
       {"server_max_window_bits", "server_max_window_bits=", "unknown",
        "server_max_window_bits=16", "server_max_window_bits=08",
        "server_max_window_bits=\"12", "client_max_window_bits=7",
        "client_max_window_bits=15; client_max_window_bits=15",
        "server_no_context_takeover=1", "client_no_context_takeover=",
        "server_no_context_takeover; server_no_context_takeover", ""}) {
    EXPECT_EQ(AnswerTo({("permessage-deflate; " + std::string(wrong)).c_str()}),
              "-")
        << wrong;
  }
}

TEST(WebSocketDeflateTest, ChecksAnswers) {
  for (const char* const good :
       {"permessage-deflate; server_no_context_takeover",
        "permessage-deflate; server_no_context_takeover; "
        "client_no_context_takeover; server_max_window_bits=8"}) {
    EXPECT_TRUE(IsWebSocketDeflateAnswer(good)) << good;
  }
  for (const char* const wrong :
       {"", "bzip", "permessage-deflate",
        "permessage-deflate; client_no_context_takeover",
        "permessage-deflate; server_no_context_takeover, bzip",
        "permessage-deflate; server_no_context_takeover; "
        "client_max_window_bits=15"}) {
    EXPECT_FALSE(IsWebSocketDeflateAnswer(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace flare::rpc
