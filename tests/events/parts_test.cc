// The parts of maru-eventd that need no process.
#include "daemon/base/msgpack.h"
#include "daemon/eventd/big_endian.h"
#include "daemon/eventd/contents.h"
#include "daemon/eventd/endpoint.h"
#include "daemon/eventd/engine_feed.h"
#include "daemon/eventd/media.h"
#include "daemon/eventd/otlp.h"
#include "daemon/eventd/replay_buffer.h"
#include "daemon/eventd/sequence.h"
#include "daemon/eventd/span_intake.h"
#include "daemon/eventd/token_metadata.h"
#include "daemon/eventd/vllm_batch.h"
#include "libmaru/spans/own_ring.h"
#include "libmaru/wire/passed_descriptors.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wait_until.h"

#include <atomic>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>

namespace maru::eventd {
namespace {

using daemon::MsgpackReader;
using daemon::MsgpackWriter;

using test::TemporaryDirectory;

// -- MessagePack ------------------------------------------------------------------------------------------------------

TEST(Msgpack, NumbersAreReadAsTheyWereWritten) {
  for (const uint64_t value : {uint64_t(0), uint64_t(127), uint64_t(128), uint64_t(255), uint64_t(256), uint64_t(65535),
                               uint64_t(65536), uint64_t(UINT32_MAX), uint64_t(UINT32_MAX) + 1, UINT64_MAX}) {
    MsgpackWriter out;
    out.whole(value);
    MsgpackReader in(out.bytes());
    uint64_t read = 1;
    EXPECT_TRUE(in.whole(read));
    EXPECT_EQ(read, value);
    EXPECT_TRUE(in.is_at_end());
  }
  for (const int64_t value : {int64_t(-1), int64_t(-32), int64_t(-33), int64_t(-129), INT64_MIN}) {
    MsgpackWriter out;
    out.negative(value);
    MsgpackReader in(out.bytes());
    uint64_t read = 0;
    EXPECT_TRUE(in.integer(read));
    EXPECT_EQ(int64_t(read), value);
  }
  // As other writers have them: 8, 16 and 32 bits.
  for (const auto& [bytes, value] :
       {std::pair(std::string("\xd0\xff"), -1), std::pair(std::string("\xd1\xff\x00", 3), -256),
        std::pair(std::string("\xd2\xff\xff\xff\xfe"), -2)}) {
    MsgpackReader in(bytes);
    uint64_t read = 0;
    EXPECT_TRUE(in.integer(read));
    EXPECT_EQ(int64_t(read), value);
  }
}

TEST(Msgpack, ALengthThatNothingFollowsIsRefusedAtOnce) {
  for (const std::string bytes :
       {"\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff", "\xdb\xff\xff\xff\xff"}) {
    MsgpackReader in(bytes);
    size_t count = 0;
    std::string_view text;
    EXPECT_FALSE(in.peek() == MsgpackReader::Type::kArray ? in.array(count)
                 : in.peek() == MsgpackReader::Type::kMap ? in.map(count)
                                                          : in.text(text));
    EXPECT_FALSE(in.is_good());
  }
  const std::string deep(1000, '\x91');
  MsgpackReader in(deep);
  EXPECT_FALSE(in.skip()) << "nested deeper than any format";
}

// -- batches ----------------------------------------------------------------------------------------------------------

TEST(Batch, SaysWhatIsWrong) {
  const auto said = [](std::string_view bytes) {
    const auto batch = decode_batch(bytes);
    return batch ? std::string() : batch.error().doing;
  };
  EXPECT_EQ(said(""), "read a batch of events: found neither an array nor a map");
  EXPECT_EQ(said("\x91\x01"), "read a batch of events: found an array of 1, expected a time and events");
  EXPECT_EQ(said("\x92\x01\x91\x91\xa5Novel"), "read a batch of events: found an event of an unknown type");
  EXPECT_EQ(said("\x92\x01\x91\x80"), "read a batch of events: found an event without a type");
  EXPECT_EQ(said("\x92\x01\x91\x92\xac"
                 "BlockRemoved\xa1x"),
            "read a batch of events: found another value of block_hashes than expected");
  EXPECT_EQ(said("\x92\xa1x\x90"), "read a batch of events: found a time that is no number");
}

TEST(Batch, RunsThatContinueEachOtherBecomeOneEvent) {
  Blocks first, second;
  first.hashes = {1, 2};
  first.tokens = {10, 20};
  first.block_size = 1;
  second.hashes = {3};
  second.parent = 2;
  second.tokens = {30};
  second.block_size = 1;
  EventList events;
  events.stored(first, 0, 2);
  events.stored(second, 0, 1);
  ASSERT_EQ(events.events().size(), 1u);
  EXPECT_EQ(events.events()[0].blocks.hashes, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(events.events()[0].blocks.tokens, (std::vector<uint32_t>{10, 20, 30}));
  second.parent = 1;
  events.stored(second, 0, 1);
  EXPECT_EQ(events.events().size(), 2u) << "another parent";
}

TEST(Batch, ALongRunBecomesSeveralEvents) {
  constexpr size_t kMost = EventList::kHashesMax, kCount = 2 * kMost + 88;
  Blocks blocks;
  blocks.block_size = 1;
  for (uint64_t i = 1; i <= kCount; ++i) {
    blocks.hashes.push_back(i);
    blocks.tokens.push_back(uint32_t(i));
  }
  EventList events;
  events.stored(blocks, 0, kCount);
  events.removed(blocks, 0, kCount);
  ASSERT_EQ(events.events().size(), 6u);
  for (size_t i = 0; i < 3; ++i) {
    const Blocks& stored = events.events()[i].blocks;
    EXPECT_EQ(stored.hashes.size(), i < 2 ? kMost : 88);
    EXPECT_EQ(stored.hashes.front(), i * kMost + 1);
    EXPECT_EQ(stored.tokens.front(), i * kMost + 1);
    EXPECT_EQ(stored.parent, i == 0 ? std::nullopt : std::optional(i * kMost));
    const Blocks& removed = events.events()[3 + i].blocks;
    EXPECT_EQ(removed.hashes.size(), i < 2 ? kMost : 88);
    EXPECT_EQ(removed.hashes.front(), kCount - i * kMost);
  }
}

// -- what a block says of itself --------------------------------------------------------------------------------------

TEST(TokenMetadata, OtherMetadataIsNoMistake) {
  for (const std::string_view bytes : {"", "{\"maru\": 1}", "\x80", "\x81\xa5other\x01", "\x81\x01\x02"}) {
    const auto tokens = TokenMetadata::decode(bytes);
    ASSERT_TRUE(tokens.has_value());
    EXPECT_FALSE(tokens->has_value());
  }
}

TEST(TokenMetadata, SaysWhatIsWrong) {
  TokenMetadata tokens;
  tokens.block_size = 4;
  tokens.tokens = {1, 2, 3, 4};
  ASSERT_TRUE(TokenMetadata::decode(tokens.encode()).has_value());
  const auto said = [](const TokenMetadata& wrong) { return TokenMetadata::decode(wrong.encode()).error().doing; };
  TokenMetadata wrong = tokens;
  wrong.tokens.push_back(5);
  EXPECT_EQ(said(wrong), "read the tokens of a block: found 5 tokens, expected a multiple of block_size, 4");
  wrong = tokens;
  wrong.hashes = {1, 2};
  EXPECT_EQ(said(wrong), "read the tokens of a block: found 2 hashes, expected 1");
  wrong = tokens;
  wrong.hashes = {7};
  wrong.parent = 7;
  EXPECT_EQ(said(wrong), "read the tokens of a block: found one hash twice");
  wrong = tokens;
  wrong.ranks = wrong.rank = 2;
  EXPECT_EQ(said(wrong), "read the tokens of a block: found rank 2 of 2");
  wrong = tokens;
  wrong.block_size = 5000;
  EXPECT_EQ(said(wrong), "read the tokens of a block: found another value of block_size than expected");
}

// -- an engine's feed -------------------------------------------------------------------------------------------------

TEST(EngineFeed, DropsWhatAReplayBringsTooLate) {
  const TemporaryDirectory directory;
  RelaySettings settings;
  settings.endpoint = "ipc://" + directory.file("events");
  settings.replay = "ipc://" + directory.file("replay");
  const ZmqContext context;
  auto publisher = ZmqSocket::create(context, ZMQ_XPUB, "a publisher");
  auto router = ZmqSocket::create(context, ZMQ_ROUTER, "a router");
  ASSERT_TRUE(publisher && router && publisher->bind(settings.endpoint) && router->bind(settings.replay));
  daemon::beside::Counters counters;
  daemon::beside::Health health;
  Contents contents;
  auto feed = EngineFeed::open(context, "test", settings, 1, contents, counters, health);
  ASSERT_TRUE(feed);
  EventList out;
  const auto wait = [](void* socket, int ms) {
    zmq_pollitem_t item = {socket, 0, ZMQ_POLLIN, 0};
    return ::zmq_poll(&item, 1, ms);
  };
  const auto serve_until = [&](const auto& is_done) {
    return test::wait_until([&] {
      (*feed)->serve(out, [] {});
      return is_done();
    });
  };
  Frames frames;
  ASSERT_EQ(wait(publisher->get(), 60'000), 1) << "no subscription";
  const std::string five = big_endian(5), end = big_endian(UINT64_MAX);
  ASSERT_TRUE(publisher->send({"", five, "\x92\x01\x90"}));
  ASSERT_TRUE(serve_until([&] { return router->receive(frames, 5); })) << "no question for what is missing";
  const std::string identity = frames[0];
  ASSERT_TRUE(router->send({identity, "", "", end, ""}));
  ASSERT_TRUE(serve_until([&] { return (*feed)->wait_ms() == -1; })) << "the replay has not ended";
  ASSERT_TRUE(router->send({identity, "", "", five, "\x92\x01\x90"}));
  std::vector<zmq_pollitem_t> items;
  (*feed)->add_to_poll(items);
  ASSERT_EQ(wait(items.back().socket, 60'000), 1) << "the late answer has not come";
  (*feed)->serve(out, [] {});
  EXPECT_EQ(wait(items.back().socket, 0), 0) << "the stream's thread would not sleep again";
}

// -- contents ---------------------------------------------------------------------------------------------------------

TEST(Contents, TellsAllAgainInTheirOrder) {
  Contents contents;
  EventList out;
  for (uint64_t i = 1; i <= 3; ++i) {
    Item item;
    item.blocks.hashes = {i};
    if (i > 1) item.blocks.parent = i - 1;
    contents.add({uint32_t(i % 2), i, 0}, item, out);
  }
  contents.forget(1);
  out.clear();
  contents.announce_all(out);
  ASSERT_EQ(out.events().size(), 2u);
  EXPECT_EQ(out.events()[0].kind, RouterEvent::Kind::kCleared);
  EXPECT_EQ(out.events()[1].blocks.hashes, std::vector<uint64_t>{2});
  EXPECT_EQ(contents.announced(), 1u);
}

// -- sequences and replay ---------------------------------------------------------------------------------------------

TEST(Sequence, GrowsThoughTheClockGoesBack) {
  TemporaryDirectory directory;
  const std::string path = directory.file("sequence");
  uint64_t last = 0;
  for (const uint64_t clock_ms : {1'000'000u, 999'000u, 5u, 2'000'000u}) {
    auto sequence = Sequence::begin(path, clock_ms);
    ASSERT_TRUE(sequence) << sequence.error().text();
    for (int i = 0; i < 3; ++i) {
      const uint64_t next = sequence->next();
      EXPECT_GT(next, last);
      last = next;
    }
  }
  EXPECT_GE(last, 2'000'000u * Sequence::kEachMs);
}

TEST(Sequence, RefusesAFileThatHoldsSomethingElse) {
  TemporaryDirectory directory;
  const std::string path = directory.file("sequence");
  std::ofstream(path) << "12x\n";
  const auto sequence = Sequence::begin(path, 1);
  ASSERT_FALSE(sequence);
  EXPECT_NE(sequence.error().doing.find("found \"12x\", expected a number"), std::string::npos);
}

TEST(ReplayBuffer, KnowsHowFarItReachesBack) {
  ReplayBuffer buffer(3, 1000);
  const auto push = [&](uint64_t sequence, bool begins) {
    buffer.push(sequence, std::make_shared<const std::string>(100, 'x'), begins);
  };
  EXPECT_FALSE(buffer.reaches_back_to(0));
  push(10, true);
  push(11, false);
  push(12, false);
  EXPECT_TRUE(buffer.reaches_back_to(0)) << "it begins with the end of all before";
  push(13, false);
  EXPECT_FALSE(buffer.reaches_back_to(10));
  EXPECT_TRUE(buffer.reaches_back_to(11));
  push(14, true);
  EXPECT_TRUE(buffer.reaches_back_to(0));
  EXPECT_EQ(buffer.begin_for(0), 14u);
  EXPECT_EQ(buffer.begin_for(13), 13u);
  EXPECT_EQ(buffer.from(13)->sequence, 13u);
  EXPECT_EQ(buffer.from(15), nullptr);
  buffer.push(15, std::make_shared<const std::string>(990, 'x'), false);
  EXPECT_EQ(buffer.batches(), 1u) << "the bytes count, too";
}

// -- names ------------------------------------------------------------------------------------------------------------

TEST(Media, ThoseThatRoutersDropAreWarnedOf) {
  EXPECT_EQ(medium_warning("CPU"), "");
  EXPECT_EQ(medium_warning("STORAGE"), "");
  for (const char* medium : {"CXL", "cpu", "FS", "lmcache-l1"})
    EXPECT_NE(medium_warning(medium).find("Dynamo drops"), std::string::npos) << medium;
  EXPECT_NE(medium_warning("GPU").find("as if they lay in a GPU's memory"), std::string::npos);
  EXPECT_EQ(dynamo_tier("CPU"), "host_pinned");
  EXPECT_EQ(dynamo_tier("STORAGE"), "disk");
}

TEST(Topics, AreOneForEachPod) {
  std::vector<std::string> mistakes;
  EXPECT_EQ(topics_of("kv@{pod}@{model}", {"a:1", "b:1"}, "m", mistakes),
            (std::vector<std::string>{"kv@a:1@m", "kv@b:1@m"}));
  EXPECT_EQ(topics_of("", {}, "", mistakes), std::vector<std::string>{""});
  EXPECT_TRUE(mistakes.empty());
  topics_of("kv@{pod}@m", {}, "", mistakes);
  topics_of("kv@x@m", {"a"}, "", mistakes);
  topics_of("kv@x@{model}", {}, "org@m", mistakes);
  topics_of("kv@x", {}, "m", mistakes);
  EXPECT_EQ(mistakes.size(), 5u);
}

TEST(Endpoint, SaysWhatIsExpected) {
  for (const char* good : {"tcp://*:5557", "tcp://127.0.0.1:1", "tcp://[::1]:65535", "ipc:///run/x"})
    EXPECT_EQ(endpoint_mistake(good, true), "") << good;
  for (const char* bad : {"", "*:5557", "tcp://", "tcp://x", "tcp://x:", "tcp://x:0", "tcp://x:65536", "tcp://:1",
                          "ipc://x", "inproc://x", "tcp://x:1x", "udp://x:1"})
    EXPECT_NE(endpoint_mistake(bad, true), "") << bad;
  EXPECT_NE(endpoint_mistake("tcp://*:5557", false), "") << "there is no such host";
}

// -- spans ------------------------------------------------------------------------------------------------------------

using format::Span;
using spans::RingReader;
using spans::RingView;
using Got = RingReader::Got;

// A ring in private memory.
struct Ring {
  explicit Ring(uint32_t slots = 64)
      : words(format::span_ring_bytes(slots) / sizeof(Line)), view(RingView::format(bytes(), slots)) {}
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  std::span<std::byte> bytes() { return {words.front().bytes, words.size() * sizeof(Line)}; }

  std::vector<Line> words;
  RingView view;
};

Span span_of(uint64_t id) {
  Span span = {};
  span.id = id;
  span.trace_low = ~id;
  span.reserved1[1] = id * 3;  // at both ends
  return span;
}

std::vector<uint64_t> read_all(RingReader& reader) {
  std::vector<uint64_t> ids;
  for (Span span; reader.read(&span) == Got::kSpan;) {
    EXPECT_EQ(span.trace_low, ~span.id);
    EXPECT_EQ(span.reserved1[1], span.id * 3);
    ids.push_back(span.id);
  }
  return ids;
}

TEST(SpanRing, ReadsWhatWasWrittenAndCountsWhatWasOverwritten) {
  Ring ring;
  RingReader reader(ring.view);
  EXPECT_TRUE(read_all(reader).empty());
  for (uint64_t id = 1; id <= 3; ++id) spans::write_span(ring.view, span_of(id));
  EXPECT_EQ(read_all(reader), (std::vector<uint64_t>{1, 2, 3}));
  for (uint64_t id = 4; id <= 103; ++id) spans::write_span(ring.view, span_of(id));
  const std::vector<uint64_t> rest = read_all(reader);
  EXPECT_EQ(rest.size(), 64u);
  EXPECT_EQ(rest.front(), 40u);
  EXPECT_EQ(reader.lost(), 36u);
  reader.note_taken(reader.next());
  spans::write_span(ring.view, span_of(200));
  RingReader next(ring.view);  // begins behind what was taken
  EXPECT_EQ(read_all(next), (std::vector<uint64_t>{200}));
}

TEST(SpanRing, PassesOverASlotWhoseWriterHasDied) {
  Ring ring;
  RingReader reader(ring.view);
  spans::write_span(ring.view, span_of(1));
  ring.view.header().written.fetch_add_relaxed(1);  // it took a number, and then a slot
  ring.view.slot(1).state.store_release(2 | format::kSpanIsWritten);
  spans::write_span(ring.view, span_of(3));
  Span span;
  ASSERT_EQ(reader.read(&span), Got::kSpan);
  ASSERT_EQ(reader.read(&span), Got::kUnfinished);
  ASSERT_EQ(reader.read(&span), Got::kUnfinished);
  reader.pass();
  ASSERT_EQ(reader.read(&span), Got::kSpan);
  EXPECT_EQ(span.id, 3u);
  EXPECT_EQ(reader.lost(), 1u);
  // A round later the slot is another writer's, who leaves it alone.
  for (uint64_t id = 4; id <= 67; ++id) spans::write_span(ring.view, span_of(id));
  EXPECT_EQ(ring.view.slot(1).state.load_relaxed(), 2 | format::kSpanIsWritten);
  EXPECT_EQ(read_all(reader).size(), 62u);  // up to that slot
}

TEST(SpanRing, WritersAtOnceLoseNothingThatFits) {
  constexpr uint64_t kThreads = 4, kEach = 20'000;
  Ring ring(1024);
  RingReader reader(ring.view);
  std::atomic<uint64_t> ended{0};
  std::vector<std::jthread> threads;
  for (uint64_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; i <= kEach; ++i) spans::write_span(ring.view, span_of(t * kEach + i));
      ended.fetch_add(1);
    });
  std::set<uint64_t> seen;
  for (bool is_last = false; !is_last;) {
    is_last = ended.load() == kThreads;
    for (const uint64_t id : read_all(reader)) EXPECT_TRUE(seen.insert(id).second) << id;
    Span span;
    // A span that was given up leaves its number behind.
    if (is_last)
      for (Got got; (got = reader.read(&span)) != Got::kNothing;) {
        if (got == Got::kSpan)
          seen.insert(span.id);
        else
          reader.pass();
      }
  }
  EXPECT_EQ(seen.size() + reader.lost(), kThreads * kEach);
}

TEST(SpanRing, RefusesWhatIsNone) {
  Ring ring;
  RingView view;
  EXPECT_EQ(RingView::attach(ring.bytes(), &view), nullptr);
  EXPECT_NE(RingView::attach(ring.bytes().first(4096), &view), nullptr);
  format::SpanRingHeader& header = ring.view.header();
  for (const uint32_t slots : {0u, 32u, 63u, 65u, 128u, 1u << 31, ~0u}) {
    header.slots = slots;
    EXPECT_NE(RingView::attach(ring.bytes(), &view), nullptr) << slots;
  }
  header.slots = 64;
  header.written.store_relaxed(1ull << 50);
  RingReader reader(ring.view);
  Span span;
  EXPECT_EQ(reader.read(&span), Got::kDamaged);
}

TEST(SpanIntake, ReadsTheSpansThatAClientWroteJustBeforeItEnded) {
  const TemporaryDirectory directory;
  TraceSettings settings;
  settings.socket_path = directory.file("spans.sock");
  daemon::beside::Counters counters;
  auto intake = SpanIntake::open(settings, counters);
  ASSERT_TRUE(intake);
  auto ring = spans::make_own_ring(64, "service", "pool", 1);
  ASSERT_TRUE(ring);
  FileDescriptor connection(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  settings.socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  iovec part = {&ring->hello, sizeof(ring->hello)};
  msghdr message = {};
  message.msg_iov = &part, message.msg_iovlen = 1;
  wire::DescriptorRoom room;
  wire::attach_descriptors(message, room, ring->memory.get());
  ASSERT_EQ(::sendmsg(connection.get(), &message, 0), ssize_t(sizeof(ring->hello)));
  const daemon::beside::Sample& present = counters.gauge("maru_eventd_span_clients", "");
  (*intake)->serve();
  EXPECT_EQ(present.value(), 1u);
  EXPECT_EQ((*intake)->drain(100, {}).spans, 0u);
  Span span = span_of(1);
  span.operation = format::SpanOperation::kStore;
  spans::write_span(ring->view, span);
  connection.reset();
  (*intake)->serve();
  EXPECT_EQ((*intake)->drain(100, {}).spans, 1u);
  (*intake)->serve();
  EXPECT_EQ(present.value(), 0u);
}

TEST(Otlp, ReadsWhatACollectorAnswers) {
  EXPECT_EQ(decode_export_response("").rejected, 0u);
  const PartialSuccess partial = decode_export_response(std::string_view("\x0a\x08\x08\x07\x12\x04why\n", 10));
  EXPECT_EQ(partial.rejected, 7u);
  EXPECT_EQ(partial.message, "why?");
  EXPECT_EQ(decode_export_response("\x0a\x7f").rejected, 0u);  // cut
}

}  // namespace
}  // namespace maru::eventd
