// Where is a block, may it be read: cold (10 M keys) and cached (200 k keys).
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/keys.h"
#include "tests/bench/peers.h"
#include "tests/bench/suite.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <optional>
#include <stdexcept>

namespace maru::bench {

namespace {

constexpr uint64_t kBatch = 256;
constexpr uint64_t kGroupBatches = 16;  // prepared together: their keys stay in the second-level cache meanwhile
constexpr uint64_t kBlockBytes = 64;
constexpr uint64_t kSparePages = 48 << 10;  // for the process that stores meanwhile
// All contestants of a row together take about this much memory a key.
constexpr uint64_t kMemoryPerKey = 1000;

[[noreturn]] void wrong(const char* what) { throw std::runtime_error(std::string("wrong answer: ") + what); }

// Keys of one sample, drawn afresh so that every question meets lines that no cache holds yet.
class Questions {
 public:
  Questions(const Chains& chains, uint64_t seed) : chains_(chains), random_(seed) {}

  const std::vector<Key>& singles(uint64_t count) {
    digests_.resize(count);
    for (Key& key : digests_) key = key_of(some_chain() * kChainBlocks + random_.below(kChainBlocks));
    return digests_;
  }
  // kGroupBatches batches of unrelated keys.
  void draw_batches() {
    singles(kGroupBatches * kBatch);
    name_all();
  }
  // kGroupBatches whole chains: whichever, or such whose pages lie side by side, or strewn.
  enum class Pages { kAny, kSideBySide, kStrewn };
  void draw_chains(Pages pages = Pages::kAny) {
    digests_.resize(kGroupBatches * kBatch);
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      uint64_t chain = some_chain();
      while (pages != Pages::kAny && Chains::is_strewn(chain) != (pages == Pages::kStrewn)) chain = some_chain();
      const uint64_t first = chain * kChainBlocks;
      for (uint64_t i = 0; i < kBatch; ++i) digests_[batch * kBatch + i] = key_of(first + i);
    }
    name_all();
  }
  // The same, of which the first few keys are stored: how many in ends()[batch].
  void draw_chains_that_end() {
    draw_chains();
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      ends_[batch] = random_.below(kBatch);
      for (uint64_t i = ends_[batch]; i < kBatch; ++i) digests_[batch * kBatch + i].hi ^= 1;
    }
  }
  const std::array<uint64_t, kGroupBatches>& ends() const { return ends_; }
  const maru_key* names(uint64_t batch) const { return &names_[batch * kBatch]; }
  const Key* digests(uint64_t batch) const { return &digests_[batch * kBatch]; }

 private:
  void name_all() {
    names_.resize(digests_.size());
    for (size_t i = 0; i < digests_.size(); ++i) names_[i] = as_maru_key(digests_[i]);
  }
  uint64_t some_chain() {
    for (;;) {
      const uint64_t chain = random_.below(chains_.count());
      if (chains_.is_complete(chain)) return chain;
    }
  }
  const Chains& chains_;
  Random random_;
  std::vector<Key> digests_;
  std::vector<maru_key> names_;
  std::array<uint64_t, kGroupBatches> ends_{};
};

// The wrong answers counted so far (none) go into the next key, so that no question can be asked before the last
// answer, by us and by every peer.

// Goes on only when `answer` is known. Without it the processor predicts the branch behind the answer and asks the next
// question meanwhile: good for callers, but not what "each depending on the last" measures.
uint64_t settled(uint64_t answer) {
#if defined(__x86_64__)
  asm volatile("lfence" : "+r"(answer) : : "memory");
#endif
  return answer;
}

double exists_serial(maru_client* client, Questions& questions, uint64_t count) {
  const std::vector<Key>& keys = questions.singles(count);
  uint64_t absent = 0;
  const double result = typical_ns(count, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const Key key = {keys[i].lo ^ absent, keys[i].hi};
      const maru_key name = as_maru_key(key);
      absent = settled(uint64_t(maru_exists(client, &name)) ^ 1);
    }
  });
  if (absent) wrong("exists");
  return result;
}

double retrieve_serial(maru_client* client, Questions& questions, uint64_t count) {
  const std::vector<Key>& keys = questions.singles(count);
  uint64_t difference = 0;
  const double result = typical_ns(count, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const Key key = {keys[i].lo ^ difference, keys[i].hi};
      const maru_key name = as_maru_key(key);
      maru_view view;
      if (maru_retrieve(client, &name, &view) != 0) wrong("retrieve");
      difference = view.bytes ^ kBlockBytes;
      maru_release(client, &view);
    }
  });
  if (difference) wrong("length");
  return result;
}

// Names draws kGroupBatches batches; ask(batch, present) asks for one.
template <typename Names, typename Ask>
double asked_batches(Names& questions, uint64_t groups, Ask&& ask) {
  Laps laps;
  uint8_t present[kBatch];
  for (uint64_t group = 0; group < groups; ++group) {
    questions.draw_batches();
    const uint64_t started_ns = now_ns();
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      if (ask(batch, present) != int(kBatch)) wrong("exists_batch");
    }
    laps.add(now_ns() - started_ns, kGroupBatches * kBatch);
  }
  return laps.median();
}

template <typename Names>
double exists_batches(maru_client* client, Names& questions, uint64_t groups) {
  return asked_batches(questions, groups, [&](uint64_t batch, uint8_t* present) {
    return maru_exists_batch(client, questions.names(batch), kBatch, present);
  });
}

// Keys that are texts of one length, as connectors make them, each with a block while this lives.
class Texts {
 public:
  Texts(Client& client, size_t characters) : client_(client), characters_(characters) {
    texts_.reserve(kTexts);
    for (uint64_t i = 0; i < kTexts; ++i) {
      std::string text = "model@1@0@" + std::to_string(i) + "@bfloat16";
      text.insert(0, characters - text.size(), 'm');
      texts_.push_back(std::move(text));
      const maru_key name = name_of(texts_.back());
      const std::array<char, kBlockBytes> block{};
      must(maru_store_copy(client_, &name, block.data(), block.size(), nullptr, nullptr), "store_copy");
    }
  }
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;
  ~Texts() {
    for (const std::string& text : texts_) {
      const maru_key name = name_of(text);
      maru_delete(client_, &name);
    }
  }
  void draw_batches() {
    names_.resize(kGroupBatches * kBatch);
    matrix_.resize(names_.size() * characters_);
    for (size_t i = 0; i < names_.size(); ++i) {
      const std::string& text = texts_[random_.below(kTexts)];
      names_[i] = name_of(text);
      text.copy(&matrix_[i * characters_], characters_);
    }
  }
  const maru_key* names(uint64_t batch) const { return &names_[batch * kBatch]; }
  maru_key_rows rows(uint64_t batch) const {
    return {&matrix_[batch * kBatch * characters_], characters_, nullptr, uint32_t(characters_), MARU_KEY_BYTES, 0};
  }

 private:
  static constexpr uint64_t kTexts = 2048;  // a pool keeps fewer keys that are so long than it has pages
  static maru_key name_of(const std::string& text) { return {text.data(), uint32_t(text.size()), MARU_KEY_BYTES, 0}; }
  Client& client_;
  size_t characters_;
  Random random_{11};
  std::vector<std::string> texts_;
  std::vector<char> matrix_;  // the same texts as names_
  std::vector<maru_key> names_;
};

double retrieve_batches(maru_client* client, Questions& questions, uint64_t groups) {
  Laps laps;
  std::vector<maru_view> views(kBatch);
  for (uint64_t group = 0; group < groups; ++group) {
    questions.draw_batches();
    const uint64_t started_ns = now_ns();
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      if (maru_retrieve_batch(client, questions.names(batch), kBatch, views.data()) != int(kBatch)) {
        wrong("retrieve_batch");
      }
      must(maru_release_batch(client, views.data(), kBatch), "release_batch");
    }
    laps.add(now_ns() - started_ns, kGroupBatches * kBatch);
  }
  return laps.median();
}

// Times the matches of so many first keys.
double match_chains(maru_client* client, Questions& questions, uint64_t groups, uint64_t keys) {
  Laps laps;
  std::vector<maru_match> matches(kGroupBatches);
  for (uint64_t group = 0; group < groups; ++group) {
    questions.draw_chains();
    const uint64_t started_ns = now_ns();
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      must(maru_match_prefix(client, questions.names(batch), keys, &matches[batch]), "match_prefix");
      if (matches[batch].blocks != keys) wrong("match_prefix");
    }
    laps.add(now_ns() - started_ns, kGroupBatches);
    for (maru_match& match : matches) must(maru_release_match(client, &match), "release_match");
  }
  return laps.median();
}

// Times the resolving of the blocks of matches.
double resolve_chains(maru_client* client, Questions& questions, uint64_t groups, Questions::Pages pages) {
  Laps laps;
  std::vector<maru_match> matches(kGroupBatches);
  std::vector<maru_view> views(kBatch);
  for (uint64_t group = 0; group < groups; ++group) {
    questions.draw_chains(pages);
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      must(maru_match_prefix(client, questions.names(batch), kBatch, &matches[batch]), "match_prefix");
      if (matches[batch].blocks != kBatch) wrong("match_prefix");
    }
    const uint64_t matched_ns = now_ns();
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch)
      must(maru_resolve(client, &matches[batch], questions.names(batch), kBatch, views.data()), "resolve");
    laps.add(now_ns() - matched_ns, kGroupBatches * kBatch);
    for (maru_match& match : matches) must(maru_release_match(client, &match), "release_match");
  }
  return laps.median();
}

double partial_matches(maru_client* client, Questions& questions, uint64_t groups) {
  Laps laps;
  std::vector<maru_match> matches(kGroupBatches);
  for (uint64_t group = 0; group < groups; ++group) {
    questions.draw_chains_that_end();
    const uint64_t started_ns = now_ns();
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      must(maru_match_prefix(client, questions.names(batch), kBatch, &matches[batch]), "match_prefix");
    }
    laps.add(now_ns() - started_ns, kGroupBatches);
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      if (matches[batch].blocks != questions.ends()[batch]) wrong("match_prefix");
      must(maru_release_match(client, &matches[batch]), "release_match");
    }
  }
  return laps.median();
}

double repin(maru_client* client, uint64_t count) {
  const Key key = key_of(0);
  const maru_key name = as_maru_key(key);
  maru_view held{}, again{};
  must(maru_pin(client, &name, &held), "pin");
  const double result = typical_ns(count, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      if (maru_pin_block(client, held.block, &again) != 0) wrong("pin_block");
      maru_unpin(client, &again);
    }
  });
  must(maru_unpin(client, &held), "unpin");
  return result;
}

double peer_serial(Peer& peer, Questions& questions, uint64_t count, bool lookup) {
  const std::vector<Key>& keys = questions.singles(count);
  uint64_t difference = 0;
  PeerRecord record{};
  const double result = typical_ns(count, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const Key key = {keys[i].lo ^ difference, keys[i].hi};
      if (lookup) {
        if (!peer.lookup(key, record)) wrong(peer.name().c_str());
        difference = record.words[0] ^ ~record.words[1];
      } else {
        difference = settled(uint64_t(peer.exists(key)) ^ 1);
      }
    }
  });
  if (difference) wrong(peer.name().c_str());
  return result;
}

// Nanoseconds per batch.
double peer_batches(Peer& peer, Questions& questions, uint64_t batches, bool chains) {
  Laps laps;
  for (uint64_t done = 0; done < batches; done += kGroupBatches) {
    chains ? questions.draw_chains() : questions.draw_batches();
    for (uint64_t batch = 0; batch < kGroupBatches; ++batch) {
      const uint64_t started_ns = now_ns();
      if (peer.exists_batch(questions.digests(batch), kBatch) != kBatch) wrong(peer.name().c_str());
      laps.add(now_ns() - started_ns, 1);
    }
  }
  return laps.median();
}

class Lookup {
 public:
  Lookup(Suite& suite, bool cold) : suite_(suite), suffix_(cold ? "_cold" : "_cached") {
    keys_ = whole_chains(cold ? suite.options().cold_keys : 200'000);
    const uint64_t available = available_memory_bytes();
    if (keys_ * kMemoryPerKey + (1ull << 30) > available) {
      const uint64_t fitting = available > (2ull << 30) ? (available - (1ull << 30)) / kMemoryPerKey : 200'000;
      note_ = "scaled down from " + std::to_string(keys_) + " keys: " + std::to_string(available >> 20) +
              " MiB of memory are available";
      keys_ = whole_chains(fitting);
      suite.lacks("memory for 10 M keys in every contestant");
    }
    suite.progress("storing " + std::to_string(keys_) + " blocks");
    PoolShape shape;
    shape.pages = keys_ + kSparePages;
    marud_.emplace(suite.options().marud, shape);
    client_.emplace(marud_->socket_path(), 64);
    chains_.emplace(store_chains(*client_, keys_));
    keepers_ = keep_chains(marud_->socket_path(), *chains_);
    questions_.emplace(*chains_, 7);
    if (chains_->incomplete()) {
      note_ +=
          (note_.empty() ? "" : "; ") + std::to_string(chains_->incomplete()) + " chains lack blocks (full buckets)";
    }
    facts_ = facts_of(client_->geometry(), keys_);
    facts_.note = note_;
    floor_.emplace(client_->geometry().pages, facts_.huge_pages);
    serial_ = suite.operations(keys_ > 1'000'000 ? 400'000 : 800'000);
    groups_ = suite.operations(256);
  }

  void measure() {
    exists_rows();
    match_rows();
    retrieve_rows();
    if (suffix_ != "_cached") return;
    text_row("exists_text35_batch256_cached", 35);
    text_row("exists_text115_batch256_cached", 115);
    text_matrix_row();
    repin_row();
  }

 private:
  bool wants(const char* row) { return suite_.wants(row + suffix_); }

  // Loaded by the first row that has peers.
  std::vector<std::unique_ptr<Peer>>& peers() {
    if (!peers_.empty() || !suite_.options().peers) return peers_;
    const auto add = [&](std::unique_ptr<Peer> peer, const char* lacking) {
      if (!peer) return suite_.lacks(std::string(lacking) + " (a peer)");
      suite_.progress("loading " + peer->name());
      peer->load(keys_);
      peers_.push_back(std::move(peer));
    };
    add(start_memcached(marud_->directory(), keys_), "memcached");
    add(start_redis(marud_->directory(), keys_), "redis-server");
    add(open_lmdb(marud_->directory(), keys_), "lmdb");
    add(open_boost_interprocess(keys_), "boost.interprocess");
    add(open_tbb(), "tbb");
    return peers_;
  }

  template <class Sample>
  void add_peers(std::vector<Contestant>& contestants, Sample sample) {
    for (const std::unique_ptr<Peer>& owned : peers()) {
      Peer* peer = owned.get();
      for (unsigned placement = 0; placement < peer->placements(); ++placement) {
        contestants.push_back({"peer_" + peer->name(), [peer, placement, sample] {
                                 peer->place(placement);
                                 return sample(*peer);
                               }});
      }
    }
  }

  bool through_socket(const Peer& peer) { return peer.placements() > 1 || cpu_count() == 1; }

  void exists_rows() {
    if (wants("exists_serial")) {
      const auto storing = start_role({"storing", marud_->socket_path()});
      run_on_cpu(1, storing->pid());
      storing->signal(SIGSTOP);
      // It stores while we, the floor and the peers without a server are timed. Those with one have both processors, one
      // for the client and one for the server.
      const auto while_storing = [&storing](auto sample) {
        storing->signal(SIGCONT);
        const double result = sample();
        storing->signal(SIGSTOP);
        return result;
      };
      std::vector<Contestant> contestants = {
          {"value", [&] { return while_storing([&] { return exists_serial(*client_, *questions_, serial_); }); }},
          {"floor", [&] { return while_storing([&] { return floor_->dependent(serial_); }); }}};
      add_peers(contestants, [&](Peer& peer) {
        if (through_socket(peer)) return peer_serial(peer, *questions_, suite_.operations(4000), false);
        return while_storing([&] { return peer_serial(peer, *questions_, serial_ / 8, false); });
      });
      suite_.measure("exists_serial" + suffix_, contestants, facts_);
    }
    if (wants("exists_batch256")) {
      std::vector<Contestant> contestants = {{"value", [&] { return exists_batches(*client_, *questions_, groups_); }},
                                             {"floor", [&] { return floor_->gathered(groups_ * kGroupBatches); }}};
      add_peers(contestants, [this](Peer& peer) {
        return peer_batches(peer, *questions_, through_socket(peer) ? suite_.operations(64) : 4 * kGroupBatches,
                            false) /
               double(kBatch);
      });
      suite_.measure("exists_batch256" + suffix_, contestants, facts_);
    }
  }

  void text_row(const char* row, size_t characters) {
    if (!suite_.wants(row)) return;
    Texts texts(*client_, characters);
    suite_.measure(row,
                   {{"value", [&] { return exists_batches(*client_, texts, groups_); }},
                    {"floor", [&] { return floor_->gathered(groups_ * kGroupBatches); }}},
                   facts_);
  }

  void text_matrix_row() {
    const char* row = "exists_text35_rows256_cached";
    if (!suite_.wants(row)) return;
    Texts texts(*client_, 35);
    const auto ask = [&](uint64_t batch, uint8_t* present) {
      const maru_key_rows rows = texts.rows(batch);
      return maru_exists_rows(*client_, &rows, kBatch, present);
    };
    suite_.measure(row,
                   {{"value", [&] { return asked_batches(texts, groups_, ask); }},
                    {"floor", [&] { return floor_->gathered(groups_ * kGroupBatches); }}},
                   facts_);
  }

  void match_rows() {
    if (wants("match_prefix256")) {
      std::vector<Contestant> contestants = {
          {"value", [&] { return match_chains(*client_, *questions_, groups_, kBatch); }},
          {"floor", [&] { return floor_->dependent_pairs(groups_ * kGroupBatches); }}};
      add_peers(contestants, [this](Peer& peer) {
        return peer_batches(peer, *questions_, through_socket(peer) ? suite_.operations(64) : 4 * kGroupBatches, true);
      });
      suite_.measure("match_prefix256" + suffix_, contestants, facts_);
    }
    if (suffix_ == "_cached" && wants("match_prefix64")) {
      suite_.measure("match_prefix64_cached",
                     {{"value", [&] { return match_chains(*client_, *questions_, groups_, 64); }},
                      {"floor", [&] { return floor_->dependent_pairs(groups_ * kGroupBatches); }}},
                     facts_);
    }
    if (wants("match_prefix256_partly")) {
      suite_.measure("match_prefix256_partly" + suffix_,
                     {{"value", [&] { return partial_matches(*client_, *questions_, groups_); }},
                      {"floor", [&] { return floor_->searches(groups_ * kGroupBatches); }}},
                     facts_);
    }
    resolve_row("resolve256", Questions::Pages::kAny);
    resolve_row("resolve256_adjacent", Questions::Pages::kSideBySide);
    resolve_row("resolve256_strewn", Questions::Pages::kStrewn);
  }

  void resolve_row(const char* row, Questions::Pages pages) {
    if (!wants(row)) return;
    suite_.measure(row + suffix_,
                   {{"value", [&, pages] { return resolve_chains(*client_, *questions_, groups_, pages); }},
                    {"floor", [&] { return floor_->gathered(groups_ * kGroupBatches); }}},
                   facts_);
  }

  void retrieve_rows() {
    if (wants("retrieve_batch256")) {
      suite_.measure("retrieve_batch256" + suffix_,
                     {{"value", [&] { return retrieve_batches(*client_, *questions_, groups_); }},
                      {"floor", [&] { return floor_->gathered(groups_ * kGroupBatches); }}},
                     facts_);
    }
    if (!wants("retrieve_release")) return;
    std::vector<Contestant> contestants = {{"value", [&] { return retrieve_serial(*client_, *questions_, serial_); }},
                                           {"floor", [&] { return floor_->dependent_pairs(serial_); }}};
    add_peers(contestants, [this](Peer& peer) {
      return peer_serial(peer, *questions_, through_socket(peer) ? suite_.operations(4000) : serial_ / 8, true);
    });
    suite_.measure("retrieve_release" + suffix_, contestants, facts_);
  }

  void repin_row() {
    if (!suite_.wants("repin_hot")) return;
    const uint64_t count = suite_.operations(2'000'000);
    suite_.measure(
        "repin_hot",
        {{"value", [&] { return repin(*client_, count); }}, {"floor", [&] { return exchange_floor(count); }}}, facts_);
  }

  Suite& suite_;
  std::string suffix_;
  uint64_t keys_ = 0;
  uint64_t serial_ = 0;
  uint64_t groups_ = 0;
  std::string note_;
  Facts facts_;
  std::optional<MarudProcess> marud_;
  std::optional<Client> client_;
  std::vector<std::unique_ptr<Client>> keepers_;  // their pins hold the chains
  std::optional<Chains> chains_;
  std::optional<Questions> questions_;
  std::optional<LoadFloor> floor_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace

void lookup_rows(Suite& suite, bool cold) { Lookup(suite, cold).measure(); }

}  // namespace maru::bench
