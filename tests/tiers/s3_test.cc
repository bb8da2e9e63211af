// The tier in S3: its signatures, its checks of answers, and its errors when the server or the configuration is wrong. The
// server verifies each signature by a reading of its own.
#include "daemon/tierd/tiers/groups.h"
#include "daemon/tierd/tiers/s3/s3_answers.h"
#include "daemon/tierd/tiers/s3/s3_object.h"
#include "daemon/tierd/tiers/s3/sigv4.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/s3_process.h"
#include "tests/tiers/tier_user.h"

#include <fstream>

#include <atomic>
#include <dlfcn.h>
#include <netdb.h>
#include <string_view>

namespace maru::test {
namespace {

using tierd::S3Request;

// What libcurl's threads ask for addresses, in front of the C library's: it answers nothing for hangs.test until it may.
struct {
  std::atomic<uint32_t> waiting = 0;
  std::atomic<bool> may_end = true;
} resolver;

// From Amazon's documentation of S3: "Signature Calculations: Transferring Payload in a Single Chunk".
TEST(Sigv4, AgreesWithAmazonsExamples) {
  const tierd::S3Credentials credentials = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
  constexpr std::time_t kTime = 1'369'353'600;  // 24 May 2013
  const std::string empty = tierd::hex_of(tierd::sha256_of({}));
  EXPECT_EQ(empty, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string host = "examplebucket.s3.amazonaws.com";
  struct {
    S3Request request;
    std::string payload_hash, signature;
  } examples[] = {
      {{"GET", "/test.txt", {}, {{"host", host}, {"range", "bytes=0-9"}}},
       empty,
       "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
      {{"PUT",
        tierd::uri_encoded("/test$file.text", true),
        {},
        {{"host", host}, {"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}},
       tierd::hex_of(tierd::sha256_of({"Welcome to ", "Amazon S3."})),
       "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
      {{"GET", "/", {{"lifecycle", ""}}, {{"host", host}}},
       empty,
       "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
      {{"GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {{"host", host}}},
       empty,
       "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
  };
  for (auto& [request, payload_hash, signature] : examples) {
    tierd::sign(request, payload_hash, credentials, "us-east-1", kTime);
    EXPECT_TRUE(request.headers["authorization"].ends_with("Signature=" + signature)) << request.verb << request.path;
    EXPECT_EQ(request.headers["x-amz-date"], "20130524T000000Z");
  }
}

TEST(S3Objects, NamesTellKeysOrTheirDigests) {
  Random random(fresh_seed());
  for (const size_t bytes : {1, 2, 3, 60, 180, 181, 8192}) {
    std::string key(bytes, 0);
    for (char& c : key) c = char(random.next());
    const std::string name = tierd::s3_object_name("a/b/", key);
    EXPECT_LE(name.size(), 255u + 4);
    EXPECT_EQ(name, tierd::uri_encoded(name, true)) << "needs an encoding";
    const auto named = tierd::parse_s3_object_name("a/b/", name);
    ASSERT_TRUE(named);
    EXPECT_EQ(named->key_bytes, bytes);
    const std::string_view group = tierd::group_of(key);
    EXPECT_EQ(named->group, bytes > tierd::kNamedKeyBytesMax && group.size() > tierd::kNamedGroupBytesMax ? "" : group);
    EXPECT_EQ(named->key, bytes <= tierd::kNamedKeyBytesMax ? key : "");
    EXPECT_FALSE(tierd::parse_s3_object_name("a/", name));
    EXPECT_FALSE(tierd::parse_s3_object_name("a/b/", name.substr(0, name.size() / 2) + "!"));
  }
}

TEST(S3Objects, HeadsAreBoundToTheirKeys) {
  const tierd::S3Head head = {100, 1, 2, 3, 3, 7};
  const std::string bytes = tierd::encode_s3_head(head, "key");
  tierd::S3Head found;
  EXPECT_EQ(tierd::decode_s3_head(bytes, "key", found), tierd::HeadVerdict::kWhole);
  EXPECT_EQ(found, head);
  EXPECT_EQ(tierd::decode_s3_head(bytes, "yek", found), tierd::HeadVerdict::kDamaged);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string wrong = bytes;
    wrong[i] = char(wrong[i] ^ 1);
    EXPECT_NE(tierd::decode_s3_head(wrong, "key", found), tierd::HeadVerdict::kWhole) << i;
  }
  EXPECT_EQ(tierd::decode_s3_head("another program's bytes, long enough for a head of ours here", "key", found),
            tierd::HeadVerdict::kForeign);
}

TEST(S3Answers, AreTakenApart) {
  const auto page = tierd::parse_s3_listing(
      "<?xml version=\"1.0\"?><ListBucketResult "
      "xmlns=\"x\"><IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b="
      "</NextContinuationToken><Contents><Key>one</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified><Size>5</"
      "Size>"
      "</Contents><Contents><Key>two&#x41;</Key><Size>x"
      "</Size></Contents></ListBucketResult>");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->next, "a&b=");
  ASSERT_EQ(page->objects.size(), 1u) << "an object without a size is none";
  EXPECT_EQ(page->objects[0].name, "one");
  EXPECT_EQ(page->objects[0].modified, 1'369'353'600);
  EXPECT_FALSE(tierd::parse_s3_listing("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"));
  EXPECT_FALSE(tierd::parse_s3_listing("<ListBucketResult><Contents><Key>one</Key>")) << "cut off";
  EXPECT_EQ(tierd::parse_s3_error("<Error><Code>SlowDown</Code><Region/></Error>").code, "SlowDown");
  EXPECT_EQ(tierd::parse_s3_error("<html>").code, "");
  tierd::S3Headers headers;
  for (const char* const line : {"Content-Range: bytes 5-9/100\r\n", "ETAG:\"x\"\r\n", "Retry-After: 99999999\r\n",
                                 "Date: Fri, 24 May 2013 00:00:00 GMT\r\n", "no header"})
    tierd::take_header_line(line, headers);
  ASSERT_TRUE(headers.range);
  EXPECT_EQ(headers.range->total, 100u);
  EXPECT_EQ(headers.etag, "\"x\"");
  EXPECT_EQ(headers.retry_after_s, 3600u);
  EXPECT_EQ(headers.date, 1'369'353'600);
  tierd::take_header_line("Content-Range: bytes 9-5/100", headers);
  EXPECT_FALSE(headers.range);
}

class S3 : public testing::Test {
 protected:
  void start(std::vector<std::string> more = {}, bool has_tls = false) {
    more.insert(more.end(), {"--bucket", "blocks"});
    server_ = std::make_unique<S3Process>(directory_.path(), std::move(more), has_tls);
  }
  std::unique_ptr<tierd::Tier> open(tierd::TierOptions more = {}) {
    return open_or_throw("s3", server_->options(std::move(more)));
  }
  // The refusal, which never has the secret in it. Empty: it was opened.
  std::string refusal(tierd::TierOptions more) {
    const auto tier = tierd::Tier::open("s3", server_->options(std::move(more)));
    const std::string text = tier ? std::string() : tier.error().text();
    EXPECT_EQ(text.find(S3Process::kSecret), std::string::npos);
    EXPECT_EQ(text.find("wrong-secret"), std::string::npos);
    return text;
  }

  const TierEntry entry_ = {"attributes", std::string(50'000, 'x'), 9};
  TemporaryDirectory directory_;
  std::unique_ptr<S3Process> server_;
};

TEST_F(S3, WhatMayPassIsTriedAgain) {
  start();
  const auto tier = open();
  TierUser user(*tier);
  for (const char* const fault : {"put-503=2", "put-500=1", "put-429=1"}) {
    server_->tell(std::string("faults ") + fault);
    EXPECT_EQ(user.store("key", entry_), 0) << fault;
  }
  for (const char* const fault : {"503=2", "reset=1", "truncate=1", "slow=1"}) {
    server_->tell(std::string("faults ") + fault);
    EXPECT_EQ(user.load("key"), entry_) << fault;
  }
  EXPECT_GE(server_->count("PUT 503"), 2u);
  EXPECT_GE(server_->count("PUT 429"), 1u);
  EXPECT_GE(server_->count("GET 503"), 2u);
  server_->tell("faults put-503=1000");
  EXPECT_EQ(user.store("key", entry_), -EBUSY);
  EXPECT_EQ(server_->count("PUT 503"), 7u) << "five tries, and the two of before";
  EXPECT_NE(std::string(tier->health().text).find("SlowDown"), std::string::npos) << tier->health().text;
}

TEST_F(S3, TheServersPauseIsKeptUnlessTheDeadlineComesFirst) {
  start();
  const auto tier = open({{"timeout_ms", "20000"}});
  TierUser user(*tier);
  server_->tell("faults RETRY=3600 put-503=1");
  EXPECT_EQ(user.store("key", entry_), -EBUSY);
  EXPECT_EQ(server_->count("PUT 503"), 1u);
}

TEST_F(S3, AbsenceAndRefusalsAreNotTriedAgain) {
  start();
  const auto tier = open();
  TierUser user(*tier);
  EXPECT_EQ(user.lookup("key").result, -ENOENT);
  EXPECT_EQ(server_->count("GET 404"), 1u);
  server_->tell("token nobody-has-it");
  EXPECT_LT(user.lookup("key").result, 0);
  EXPECT_EQ(server_->count("GET 400"), 1u);
  EXPECT_EQ(tier->health().is_ready, 0u);
}

TEST_F(S3, AHangingServerIsLeftAtTheDeadline) {
  start();
  const auto tier = open(), impatient = open({{"timeout_ms", "1000"}, {"list", "false"}});
  TierUser user(*tier), left(*impatient);
  ASSERT_EQ(user.store("key", entry_), 0);
  server_->tell("faults hang=1");
  EXPECT_EQ(left.lookup("key").result, -ETIMEDOUT);
  EXPECT_EQ(user.load("key"), entry_);
}

TEST_F(S3, WrongBytesAreDamage) {
  start();
  const auto tier = open();
  TierUser user(*tier);
  ASSERT_EQ(user.store("key", entry_), 0);
  TierEntry room = entry_;
  server_->tell("faults flip=1");
  EXPECT_EQ(user.finish(user.begin(MARU_TIER_LOAD, "key", room)).result, -EBADMSG);
  EXPECT_EQ(tier->usage().damaged, 1u);
  EXPECT_EQ(user.load("key"), entry_);
}

TEST_F(S3, BodiesThatChangeOnTheirWayAreNotStored) {
  start();
  const auto tier = open({{"attempts", "1"}});
  TierUser user(*tier);
  server_->tell("faults tamper=1");
  EXPECT_LT(user.store("key", entry_), 0);
  EXPECT_EQ(server_->count("objects"), 0u);
  EXPECT_EQ(server_->count("PUT 400"), 1u);
  EXPECT_EQ(user.store("key", entry_), 0);
  EXPECT_EQ(server_->count("signed bodies"), 1u);
}

TEST_F(S3, LargeEntriesComeInParts) {
  start();
  const auto tier = open({{"part_bytes", "16384"}});
  TierUser user(*tier);
  Random random(fresh_seed());
  TierEntry entry = random_entry(random, 0);
  for (const uint64_t bytes : {16384 - 59, 16384 - 58, 200'000}) {  // the head has 59 bytes with this key
    entry.payload.resize(bytes);
    for (char& c : entry.payload) c = char(random.next());
    EXPECT_EQ(user.store("key", entry), 0);
    EXPECT_EQ(user.load("key"), entry);
  }
  EXPECT_GT(server_->count("GET 206"), 13u);
  server_->tell("faults noranges=100");
  TierEntry room = entry;
  EXPECT_LT(user.finish(user.begin(MARU_TIER_LOAD, "key", room)).result, 0);
  EXPECT_NE(std::string(tier->health().text).find("part_bytes"), std::string::npos) << tier->health().text;
}

TEST_F(S3, AConditionalPutKeepsTheFirstOfTheSame) {
  start();
  const auto one = open({{"if_none_match", "true"}}), two = open({{"if_none_match", "true"}});
  TierUser first(*one), second(*two);
  EXPECT_EQ(first.store("key", entry_), 0);
  EXPECT_EQ(second.store("key", entry_), 0);
  EXPECT_EQ(server_->count("PUT 412"), 1u);
  EXPECT_EQ(server_->count("PUT 200"), 1u);
  const TierEntry other = {"attributes", std::string(50'000, 'y'), 9};
  EXPECT_EQ(second.store("key", other), 0);
  EXPECT_EQ(first.load("key"), other);
}

TEST_F(S3, WhatTheServerRefusesNamesFindingExpectationAndRemedy) {
  start();
  const auto expect = [&](tierd::TierOptions more, std::initializer_list<const char*> words) {
    const std::string text = refusal(std::move(more));
    for (const char* const word : words) EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
  };
  expect({{"secret_access_key", "wrong-secret"}}, {"SignatureDoesNotMatch", "correct secret_access_key"});
  expect({{"access_key_id", "AKIAOTHER"}}, {"InvalidAccessKeyId", "correct access_key_id"});
  expect({{"bucket", "nothing"}}, {"NoSuchBucket", "\"nothing\"", "create it, or correct bucket"});
  expect({{"region", "us-east-1"}}, {"found region = \"us-east-1\"", "expected \"eu-west-1\"", "correct region"});
  expect({{"session_token", "old"}}, {"InvalidToken", "renew"});
  server_->tell("clock 1000");
  expect({}, {"RequestTimeTooSkewed", "clock is -", "set the clock"});
  server_->tell("clock 0");
  server_->tell("faults html=100");
  expect({}, {"no list of objects", "correct endpoint"});
  server_->tell("faults html=0");
  EXPECT_EQ(refusal({}), "");
}

TEST_F(S3, OptionsThatMakeNoSenseAreRefused) {
  start();
  for (const auto& [name, value] : tierd::TierOptions{{"endpoint", "127.0.0.1:9000"},
                                                      {"endpoint", "ftp://host"},
                                                      {"endpoint", "http://"},
                                                      {"endpoint", "http://user@host"},
                                                      {"bucket", "A"},
                                                      {"bucket", "with/slash"},
                                                      {"prefix", "/first"},
                                                      {"prefix", "a b"},
                                                      {"addressing", "both"},
                                                      {"sign_payload", "perhaps"},
                                                      {"verify", "yes"},
                                                      {"region", "Earth 1"},
                                                      {"part_bytes", "1"},
                                                      {"profile_", "x"},
                                                      {"access_key_id", "two words"},
                                                      {"access_key_id", ""},
                                                      {"credentials_file", "/nowhere"}}) {
    tierd::TierOptions more = {{name, value}};
    if (name == "credentials_file") more.insert(more.end(), {{"access_key_id", ""}, {"secret_access_key", ""}});
    const std::string text = refusal(more);
    EXPECT_NE(text.find(name == "access_key_id" ? "access key" : name), std::string::npos) << name << ": " << text;
    EXPECT_NE(text.find("expected"), std::string::npos) << text;
  }
}

TEST_F(S3, CredentialsComeFromAFileAndFromTheEnvironment) {
  start({"--token", "first-token"});
  const tierd::TierOptions none = {{"access_key_id", ""}, {"secret_access_key", ""}};
  const std::string path = directory_.path() + "/credentials";
  const auto write = [&](const std::string& token) {
    std::ofstream(path) << "[other]\naws_access_key_id = x\n# a comment\n[blocks]\naws_access_key_id = AKIATEST\n"
                        << "aws_secret_access_key=" << S3Process::kSecret << "\naws_session_token = " << token << "\n";
  };
  write("first-token");
  tierd::TierOptions by_file = none;
  by_file.insert(by_file.end(), {{"credentials_file", path}, {"profile", "blocks"}});
  const auto tier = open(by_file);
  TierUser user(*tier);
  EXPECT_EQ(user.store("key", entry_), 0);
  // Temporary credentials end; the file has the next ones by then.
  server_->tell("token second-token");
  write("second-token");
  EXPECT_EQ(user.load("key"), entry_);

  by_file.back().second = "nobody";
  EXPECT_NE(refusal(by_file).find("found no [nobody]"), std::string::npos);
  EXPECT_NE(refusal(none).find("AWS_ACCESS_KEY_ID"), std::string::npos);
  ::setenv("AWS_ACCESS_KEY_ID", "AKIATEST", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", S3Process::kSecret, 1);
  ::setenv("AWS_SESSION_TOKEN", "second-token", 1);
  EXPECT_EQ(refusal(none), "");
  for (const char* const name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}) ::unsetenv(name);
}

TEST_F(S3, AllCallsThatOldCredentialsSignedAreTriedAgain) {
  start({"--token", "first-token"});
  const std::string path = directory_.path() + "/credentials";
  const auto write = [&](const std::string& token) {
    std::ofstream(path) << "[default]\naws_access_key_id = AKIATEST\naws_secret_access_key=" << S3Process::kSecret
                        << "\naws_session_token = " << token << "\n";
  };
  write("first-token");
  const auto tier =
      open({{"access_key_id", ""}, {"secret_access_key", ""}, {"credentials_file", path}, {"part_bytes", "16384"}});
  TierUser user(*tier);
  const TierEntry large = {"attributes", std::string(8 * 16384, 'x'), 9};
  ASSERT_EQ(user.store("key", large), 0);
  server_->tell("token second-token");
  write("second-token");
  EXPECT_EQ(user.finish(user.begin(MARU_TIER_LOAD, "key", large)).result, 0);  // its parts are signed together
  EXPECT_EQ(user.load("key"), large);
  EXPECT_GT(server_->count("GET 400"), 1u);
}

TEST_F(S3, TlsNeedsAnAuthorityThatIsTrusted) {
  start({}, true);
  EXPECT_NE(refusal({}).find("correct ca_file or endpoint"), std::string::npos) << refusal({});
  EXPECT_NE(refusal({{"ca_file", "/nowhere"}}).find("ca_file"), std::string::npos);
  const auto tier = open({{"ca_file", server_->certificate_path()}});
  TierUser user(*tier);
  EXPECT_EQ(user.store("key", entry_), 0);
  EXPECT_EQ(user.load("key"), entry_);
  EXPECT_EQ(server_->count("unsigned bodies"), 1u);
  const auto signing = open({{"ca_file", server_->certificate_path()}, {"sign_payload", "true"}});
  EXPECT_EQ(TierUser(*signing).store("key", entry_), 0);
  EXPECT_EQ(server_->count("signed bodies"), 1u);
}

TEST_F(S3, TheBucketMayBeAPartOfTheHost) {
  start();
  const auto tier = open({{"endpoint", server_->endpoint("localhost")}, {"addressing", "virtual"}});
  TierUser user(*tier);
  EXPECT_EQ(user.store("key", entry_), 0);
  EXPECT_EQ(user.load("key"), entry_);
  EXPECT_GT(server_->count("virtual hosts"), 2u);
}

TEST_F(S3, AServerMayComeLaterAndGo) {
  start();
  server_->kill();
  const auto tier = open();
  TierUser user(*tier);
  EXPECT_LT(user.lookup("key").result, 0);
  EXPECT_EQ(tier->health().is_ready, 0u);
  server_->start();
  ASSERT_TRUE(wait_until([&] { return user.store("key", entry_) == 0; }));
  EXPECT_EQ(user.load("key"), entry_);
  EXPECT_EQ(tier->health().is_ready, 1u);
}

TEST_F(S3, WhatOtherHostsStoreIsFoundAtOnceAndListedLater) {
  start({"--page", "3"});
  const auto one = open(), two = open({{"list_every_s", "1"}});
  TierUser first(*one), second(*two);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(first.store("key " + std::to_string(i), entry_), 0);
  EXPECT_EQ(second.load("key 7"), entry_);
  EXPECT_TRUE(wait_until([&] { return two->usage().entries == 20; }));
  EXPECT_EQ(two->usage().entry_bytes, one->usage().entry_bytes);
  ASSERT_EQ(first.remove("key 3"), 0);
  EXPECT_TRUE(wait_until([&] { return two->usage().entries == 19; }));
  EXPECT_EQ(two->usage().physical_bytes, one->usage().physical_bytes);
}

TEST_F(S3, AListThatDoesNotEndHoldsUpNobodyAndHasABound) {
  start();
  server_->tell("faults endless=1000000000");
  const auto tier = open({{"timeout_ms", "5000"}});  // it does not wait for the whole list
  TierUser user(*tier);
  EXPECT_EQ(user.store("key", entry_), 0);
  EXPECT_EQ(user.load("key"), entry_);
  const auto bounded = open({{"list_memory", "65536"}});
  EXPECT_TRUE(wait_until([&] { return bounded->health().text[0] != 0; }));
  const std::string text = bounded->health().text;
  for (const char* const words : {"list_memory", "expected 256 at most", "list = false"})
    EXPECT_NE(text.find(words), std::string::npos) << text;
  EXPECT_EQ(bounded->health().is_ready, 1u);
  EXPECT_EQ(TierUser(*bounded).load("key"), entry_);
}

TEST_F(S3, ABucketWithMoreThanTheCatalogueHoldsIsListedInPart) {
  start({"--page", "10"});
  {
    const auto tier = open();
    TierUser user(*tier);
    for (int i = 0; i < 300; ++i) ASSERT_EQ(user.store("key " + std::to_string(i), {"", "x", 0}), 0);
  }
  const auto tier = open({{"list_memory", "65536"}});
  const std::string text = tier->health().text;
  EXPECT_NE(text.find("raise list_memory"), std::string::npos) << text;
  EXPECT_GT(tier->usage().entries, 100u);
  EXPECT_LE(tier->usage().entries, 65536u / 200);
  TierUser user(*tier);
  EXPECT_EQ(user.load("key 299"), (TierEntry{"", "x", 0}));
  EXPECT_EQ(open({})->usage().entries, 300u);
}

// The resolver of the C library waits for name servers as long as it likes, here as long as the test does.
TEST_F(S3, ANameThatIsLookedUpForEverHoldsUpNoOtherTransfer) {
  start();
  resolver.may_end = false;
  const auto tier = open({{"endpoint", server_->endpoint("hangs.test")}, {"timeout_ms", "300"}});
  TierUser user(*tier);
  EXPECT_EQ(user.lookup("key").result, -ETIMEDOUT);
  EXPECT_GT(resolver.waiting.load(), 0u);
  resolver.may_end = true;
  resolver.may_end.notify_all();
}

TEST_F(S3, KeysThatNamesDoNotTellAreReadFromHeads) {
  start();
  std::set<std::string> keys;
  {
    const auto tier = open();
    TierUser user(*tier);
    for (int i = 0; i < 30; ++i) keys.insert(std::string(300, 'k') + std::to_string(i));
    keys.insert("short");
    for (const std::string& key : keys) ASSERT_EQ(user.store(key, entry_), 0);
  }
  const auto tier = open();
  EXPECT_EQ(tier->usage().entries, keys.size());
  EXPECT_TRUE(wait_until([&] {
    std::set<std::string> listed;
    std::vector<maru_tier_entry> page(4);
    uint64_t cursor = 0;
    for (int n = 0; (n = tier->list(&cursor, page.data(), page.size())) > 0;)
      for (int i = 0; i < n; ++i)
        listed.emplace(reinterpret_cast<const char*>(page[size_t(i)].key), page[size_t(i)].key_bytes);
    return listed == keys;
  }));
}

}  // namespace
}  // namespace maru::test

extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** ret_found) {
  using maru::test::resolver;
  if (host != nullptr && std::string_view(host) == "hangs.test") {
    ++resolver.waiting;
    resolver.may_end.wait(false);
    return EAI_NONAME;
  }
  static auto* const libc = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return libc(host, service, hints, ret_found);
}
