/* A library of others with thread-local words that it reaches without a call: they take BYTES of the block that every thread of
 * a program has from its start. */
static __thread volatile char words[BYTES] __attribute__((tls_model("initial-exec")));

char touch_words(void);
char touch_words(void) { return words[0]; }
