/* keep_block store | find: stores a block under one key and ends, or looks for it. Exit status 0 when it is there. */
#include <maru/maru.h>
#include <stdio.h>
#include <string.h>

static const char kept[] = "what was stored before marud ended";

int main(int count, char **arguments) {
  maru_client *client = NULL;
  maru_view view;
  maru_key key;
  int result;
  memset(&key, 0, sizeof key);
  key.data = "kept";
  key.size = 4;
  key.kind = MARU_KEY_BYTES;
  if (count != 2) return 2;
  result = maru_attach(NULL, &client);
  if (result == 0 && strcmp(arguments[1], "store") == 0)
    result = maru_store_copy(client, &key, kept, sizeof kept, NULL, NULL);
  if (result == 0) result = maru_retrieve(client, &key, &view);
  if (result == 0 && (view.bytes != sizeof kept || memcmp(view.data, kept, sizeof kept) != 0)) result = 1;
  if (result != 0) fprintf(stderr, "keep_block %s: %s\n", arguments[1], result < 0 ? strerror(-result) : "other bytes");
  if (client) maru_detach(client);
  return result != 0;
}
