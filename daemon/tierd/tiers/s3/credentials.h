// Where the access key of S3 comes from: the options, a file in the form of AWS's tools, or the environment. No text that this
// file makes has a secret in it.
#pragma once

#include "daemon/tierd/tiers/s3/sigv4.h"
#include "libmaru/base/result.h"

#include <optional>
#include <string>
#include <string_view>

namespace maru::tierd {

struct CredentialSource {
  S3Credentials given;  // by the options; used when its access_key_id is not empty
  std::string path;     // else this file, when it is not empty; else the environment
  std::string profile = "default";
};

// An error names the finding, the expectation and the remedy.
Result<S3Credentials> read_credentials(const CredentialSource& source);

// "[profile]" and "aws_access_key_id = ...". Nothing: there is no such profile, or it lacks the key or the secret.
std::optional<S3Credentials> credentials_in(std::string_view text, std::string_view profile);

}  // namespace maru::tierd
