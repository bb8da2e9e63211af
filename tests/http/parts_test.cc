// The parts of HTTP that need no socket: the exchange between its two threads, the token, addresses.
#include "daemon/http/desk.h"
#include "daemon/http/door.h"
#include "daemon/http/exchange.h"
#include "daemon/http/places.h"
#include "tests/support/random.h"
#include "tests/support/temporary_directory.h"

#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <poll.h>
#include <sys/stat.h>
#include <thread>
#include <tuple>
#include <unistd.h>

namespace maru::daemon::http {
namespace {

Question question_of(uint64_t number) {
  Question question;
  question.command = std::to_string(number);
  return question;
}

TEST(ExchangeTest, AnswersInTheOrderOfTheQuestions) {
  auto exchange = Exchange::create();
  ASSERT_TRUE(exchange);
  const auto first = (*exchange)->ask(question_of(1)), second = (*exchange)->ask(question_of(2));
  ASSERT_TRUE(first && second);
  EXPECT_FALSE((*exchange)->take(*first));
  EXPECT_EQ((*exchange)->next(), first);
  EXPECT_EQ((*exchange)->next(), second);
  EXPECT_FALSE((*exchange)->next());
  (*exchange)->answer(*second, {0, "two", nullptr});
  EXPECT_FALSE((*exchange)->take(*first));
  EXPECT_EQ((*exchange)->take(*second)->text, "two");
  EXPECT_FALSE((*exchange)->take(*second)) << "an answer was taken twice";
}

TEST(ExchangeTest, RefusesWhenFullAndHasRoomAgainAfterEachWayOut) {
  auto exchange = Exchange::create();
  ASSERT_TRUE(exchange);
  std::vector<uint32_t> slots;
  for (uint64_t i = 0; i < Exchange::kSlots; ++i) slots.push_back((*exchange)->ask(question_of(i)).value());
  EXPECT_FALSE((*exchange)->ask(question_of(99)));
  EXPECT_TRUE((*exchange)->withdraw(slots[3]));
  EXPECT_EQ((*exchange)->ask(question_of(100)), slots[3]);
  const uint32_t begun = (*exchange)->next().value();
  EXPECT_FALSE((*exchange)->withdraw(begun)) << "what was begun was taken back";
  (*exchange)->abandon(begun);
  EXPECT_FALSE((*exchange)->ask(question_of(101))) << "the slot of a question without an answer was given away";
  (*exchange)->answer(begun, {0, "late", nullptr});
  EXPECT_EQ((*exchange)->ask(question_of(102)), begun);
  EXPECT_EQ((*exchange)->question(begun).command, "102");
}

// Two threads, as in marud. Every question comes to exactly one end, and every answer is that of its question.
TEST(ExchangeTest, NoQuestionIsLostOrAnsweredForAnother) {
  constexpr uint64_t kQuestions = 50'000;
  auto made = Exchange::create();
  ASSERT_TRUE(made);
  Exchange& exchange = **made;
  std::thread deciding([&] {
    for (bool is_over = false; !is_over;) {
      pollfd entry = {exchange.questions_fd(), POLLIN, 0};
      ::poll(&entry, 1, 1000);
      exchange.clear_questions_fd();
      while (const auto slot = exchange.next()) {
        const std::string command = exchange.question(*slot).command;
        is_over |= command == "end";
        exchange.answer(*slot, {0, "answer to " + command, nullptr});
      }
    }
  });
  const uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  test::Random random(seed);
  std::map<uint32_t, uint64_t> waiting;  // by slot
  uint64_t asked = 0, answered = 0, withdrawn = 0, abandoned = 0;
  const auto take_all = [&] {
    for (auto entry = waiting.begin(); entry != waiting.end();) {
      const auto answer = exchange.take(entry->first);
      if (!answer) {
        ++entry;
        continue;
      }
      EXPECT_EQ(answer->text, "answer to " + std::to_string(entry->second));
      ++answered;
      entry = waiting.erase(entry);
    }
  };
  while (asked < kQuestions) {
    if (const auto slot = exchange.ask(question_of(asked))) {
      ASSERT_FALSE(waiting.contains(*slot)) << "a slot that is in use was given away";
      waiting[*slot] = asked++;
    }
    if (random.below(4) == 0 && !waiting.empty()) {
      const uint32_t slot = waiting.begin()->first;
      if (exchange.withdraw(slot)) {
        ++withdrawn;
        waiting.erase(slot);
      } else if (random.below(2) == 0) {
        exchange.abandon(slot);
        ++abandoned;
        waiting.erase(slot);
      }
    }
    take_all();
    exchange.clear_answers_fd();
  }
  while (!waiting.empty()) take_all();
  std::optional<uint32_t> last;
  while (!last)
    last = exchange.ask([] {
      Question question;
      question.command = "end";
      return question;
    }());
  deciding.join();
  EXPECT_EQ(exchange.take(*last)->text, "answer to end");
  EXPECT_EQ(answered + withdrawn + abandoned, kQuestions);
  EXPECT_GT(answered, 0u);
}

TEST(DoorTest, ListensOnThisMachineAlone) {
  EXPECT_EQ(loopback_address("127.0.0.1:9101")->port, 9101);
  EXPECT_TRUE(loopback_address("[::1]:80")->is_v6);
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:80 ",
                           "0.0.0.0:80", "localhost:80", "[::]:80", "10.0.0.1:80", ":80", "[::1]80"})
    EXPECT_FALSE(loopback_address(text)) << text;
}

TEST(DoorTest, TheAdminGroupReachesTheSocketOrItIsSaidWhatKeepsItOut) {
  const gid_t group = ::geteuid() == 0 ? 54'321 : ::getegid();
  const test::TemporaryDirectory directory;
  directory.open_to_everybody();
  const auto mode_of = [](const std::string& path, gid_t* ret_group) {
    struct stat status = {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    *ret_group = status.st_gid;
    return status.st_mode & 0777;
  };
  const auto open = [&](const std::string& folder) {
    HttpConfig config;
    config.socket_path = folder + "/http.sock";
    auto door = std::make_unique<Door>(config, group);
    EXPECT_TRUE(door->open_unix());
    return std::pair(std::move(door), config.socket_path);
  };
  gid_t found = 0;
  const std::string made = directory.file("made"), there = directory.file("there");
  const auto [door, socket] = open(made);
  EXPECT_EQ(mode_of(made, &found), 0750u);
  EXPECT_EQ(found, group);
  EXPECT_EQ(closed_to_group(socket, group), "");
  ASSERT_EQ(::chmod(directory.path().c_str(), 0700), 0);
  EXPECT_NE(closed_to_group(socket, group).find(directory.path() + " lets its members not pass"), std::string::npos);
  EXPECT_EQ(closed_to_group(socket, std::nullopt), "") << "nobody but its owner shall come in";

  directory.open_to_everybody();
  ASSERT_EQ(::mkdir(there.c_str(), 0700), 0);
  const auto [other, other_socket] = open(there);
  EXPECT_EQ(mode_of(there, &found), 0700u) << "somebody else's folder";
  EXPECT_NE(closed_to_group(other_socket, group).find(there + " lets its members not pass"), std::string::npos);
}

TEST(TokenTest, IsEqualToItselfAlone) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.file("token"), text = "0123456789abcdef0123";
  std::ofstream(path) << text << "\n";
  ::chmod(path.c_str(), 0600);
  const auto token = Token::read(path);
  ASSERT_TRUE(token) << token.error().text();
  EXPECT_TRUE(token->equals(text));
  EXPECT_FALSE(token->equals(""));
  EXPECT_FALSE(token->equals(text + "x"));
  EXPECT_FALSE(token->equals(text + std::string(1000, 'x')));
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(token->equals(text.substr(0, i)));
    std::string other = text;
    other[i] ^= 1;
    EXPECT_FALSE(token->equals(other));
  }
}

TEST(TokensTest, EachLetsDoWhatItIsForAndTwoAreNotTheSame) {
  const test::TemporaryDirectory directory;
  const std::string everything = "0123456789abcdef-everything", read = "0123456789abcdef-read";
  const auto write = [&](const char* name, const std::string& text) {
    const std::string path = directory.file(name);
    std::ofstream(path) << text << "\n";
    ::chmod(path.c_str(), 0600);
    return path;
  };
  HttpConfig both;
  both.token_file = write("token", everything);
  both.read_token_file = write("read", read);
  HttpConfig one = both, other = both;
  one.read_token_file.clear();
  other.token_file.clear();
  struct Case {
    const HttpConfig& config;
    Right of_everything, of_read;
  };
  for (const Case& c : {Case{both, Right::kEverything, Right::kRead}, Case{one, Right::kEverything, Right::kNone},
                        Case{other, Right::kNone, Right::kRead}}) {
    const auto tokens = Tokens::read(c.config);
    ASSERT_TRUE(tokens) << tokens.error().text();
    EXPECT_EQ(tokens->right_of(everything), c.of_everything);
    EXPECT_EQ(tokens->right_of(read), c.of_read);
    for (const std::string& wrong : {std::string(), everything + read, read + "x", read.substr(1)})
      EXPECT_EQ(tokens->right_of(wrong), Right::kNone) << wrong;
  }
  const auto none = Tokens::read(HttpConfig());
  ASSERT_TRUE(none);
  EXPECT_EQ(none->right_of(""), Right::kNone);
  write("read", everything);
  const auto same = Tokens::read(both);
  ASSERT_FALSE(same);
  EXPECT_NE(same.error().text().find("which may do everything"), std::string::npos) << same.error().text();
}

// -- places -----------------------------------------------------------------------------------------------------------

using State = Place::State;
constexpr std::nullopt_t kTcp = std::nullopt;

std::vector<Place> crowd(std::initializer_list<std::tuple<std::optional<uid_t>, State, size_t>> parties) {
  std::vector<Place> places;
  for (const auto& [user, state, count] : parties)
    for (size_t i = 0; i < count; ++i) places.push_back({user, state, places.size() + 1});
  return places;
}

TEST(PlacesTest, NobodyGivesWayWhileThereArePlaces) {
  const auto places = crowd({{kTcp, State::kStranger, 3}, {1000, State::kIdle, 3}, {0, State::kIdle, 9}});
  for (const std::optional<uid_t> user :
       {std::optional<uid_t>(), std::optional<uid_t>(1000), std::optional<uid_t>(0)}) {
    const Admission admission = admit(places, user, user != uid_t(0), 16);
    EXPECT_TRUE(admission.why_not.empty() && !admission.gives_way) << admission.why_not;
  }
}

TEST(PlacesTest, StrangersGiveWayToOneAnotherAndNotToUsers) {
  const auto places = crowd({{kTcp, State::kIdle, 1}, {kTcp, State::kStranger, 3}, {1000, State::kIdle, 2}});
  const Admission of_tcp = admit(places, kTcp, true, 16);
  EXPECT_EQ(of_tcp.gives_way, 1u) << "the oldest stranger, before one that has shown the token";
  EXPECT_FALSE(admit(places, 1000, true, 16).gives_way) << "there is room for users";
}

TEST(PlacesTest, APartyWithItsShareMakesRoomItself) {
  const auto idle = crowd({{1000, State::kBusy, 3}, {1000, State::kIdle, 1}, {1001, State::kIdle, 1}});
  EXPECT_EQ(admit(idle, 1000, true, 16).gives_way, 3u);
  const auto busy = crowd({{1000, State::kBusy, 4}, {1001, State::kIdle, 1}});
  EXPECT_FALSE(admit(busy, 1000, true, 16).why_not.empty()) << "its own busy ones stay";
  EXPECT_FALSE(admit(busy, 1000, true, 16).gives_way);
  EXPECT_TRUE(admit(busy, 1001, true, 16).why_not.empty());
  EXPECT_TRUE(admit(busy, 1000, false, 16).why_not.empty()) << "root has no share";
}

TEST(PlacesTest, NoUserIsKeptOutByOthersWhateverTheyDo) {
  for (const State state : {State::kIdle, State::kBusy}) {
    const auto places = crowd({{kTcp, state, 4}, {1000, state, 4}, {1001, state, 4}, {1002, state, 4}});
    const Admission admission = admit(places, 1003, true, 16);
    EXPECT_EQ(admission.gives_way, 0u) << admission.why_not;
    const auto roots = crowd({{1000, state, 4}, {0, state, 12}});
    EXPECT_EQ(admit(roots, 1001, true, 16).gives_way, 4u) << "of the largest party";
  }
  const auto waiting = crowd({{0, State::kWaits, 16}});
  EXPECT_FALSE(admit(waiting, 1000, true, 16).why_not.empty()) << "an answer that somebody waits for is not given up";
}

TEST(PlacesTest, WhoHasMostTakesNothingFromOthers) {
  const auto places = crowd({{1000, State::kIdle, 4}, {0, State::kBusy, 12}});
  const Admission admission = admit(places, 0, false, 16);
  EXPECT_FALSE(admission.gives_way);
  EXPECT_FALSE(admission.why_not.empty());
  const auto even = crowd({{1000, State::kBusy, 8}, {0, State::kBusy, 8}});
  EXPECT_FALSE(admit(even, 0, false, 16).gives_way) << "they would take it from one another for ever";
}

}  // namespace
}  // namespace maru::daemon::http
