#include "daemon/tierd/tiers/s3/credentials.h"

#include "daemon/tierd/tiers/s3/trimmed.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace maru::tierd {

namespace {

// A line break in a credential would be one in a header, too.
bool is_printable(std::string_view text) {
  for (const char c : text)
    if (c <= ' ' || c > '~') return false;
  return true;
}

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

Result<S3Credentials> checked(S3Credentials found, const std::string& where) {
  if (found.access_key_id.empty() != found.secret_access_key.empty())
    return failure(EINVAL, where + " has one of access key id and secret; expected both");
  if (is_printable(found.access_key_id) && is_printable(found.secret_access_key) && is_printable(found.session_token))
    return found;
  return failure(EINVAL, where +
                             " has a blank or a control character in the access key, the secret or the session "
                             "token; expected printable characters, so copy them again");
}

}  // namespace

std::optional<S3Credentials> credentials_in(std::string_view text, std::string_view profile) {
  S3Credentials found;
  bool is_inside = false;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.starts_with("[")) {
      is_inside = line.ends_with("]") && trimmed(line.substr(1, line.size() - 2)) == profile;
      continue;
    }
    const size_t equals = line.find('=');
    if (!is_inside || line.starts_with("#") || line.starts_with(";") || equals == std::string_view::npos) continue;
    const std::string_view name = trimmed(line.substr(0, equals)), value = trimmed(line.substr(equals + 1));
    if (name == "aws_access_key_id") found.access_key_id = value;
    if (name == "aws_secret_access_key") found.secret_access_key = value;
    if (name == "aws_session_token") found.session_token = value;
  }
  if (found.access_key_id.empty() || found.secret_access_key.empty()) return std::nullopt;
  return found;
}

Result<S3Credentials> read_credentials(const CredentialSource& source) {
  if (!source.given.access_key_id.empty() || !source.given.secret_access_key.empty())
    return checked(source.given, "the table of options");
  if (!source.path.empty()) {
    std::ifstream file(source.path);
    if (!file)
      return failure(EACCES, "credentials_file: cannot read " + source.path + "; expected a file with [" +
                                 source.profile +
                                 "], aws_access_key_id and "
                                 "aws_secret_access_key, which the user of maru-tierd may read");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    auto found = credentials_in(text, source.profile);
    if (found) return checked(std::move(*found), source.path);
    return failure(EINVAL, "credentials_file: found no [" + source.profile +
                               "] with aws_access_key_id and "
                               "aws_secret_access_key in " +
                               source.path + "; add them, or name another profile");
  }
  const S3Credentials found = {from_environment("AWS_ACCESS_KEY_ID"), from_environment("AWS_SECRET_ACCESS_KEY"),
                               from_environment("AWS_SESSION_TOKEN")};
  if (!found.access_key_id.empty() || !found.secret_access_key.empty()) return checked(found, "the environment");
  return failure(EINVAL,
                 "found no credentials; set access_key_id and secret_access_key, or credentials_file, or the "
                 "environment's AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
}

}  // namespace maru::tierd
