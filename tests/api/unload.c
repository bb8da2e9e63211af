/* A program that loads the library, has it handle memory errors, and unloads it: the signal that comes afterwards is the
 * program's own. Exit status 0 when it was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static sigjmp_buf landing;

static void own_handler(int number) {
  (void)number;
  siglongjmp(landing, 1);
}

int main(int argument_count, char **arguments) {
  int (*handle_memory_errors)(uint32_t flags);
  struct sigaction action;
  void *library;
  void *address;
  volatile char *beyond_the_end;
  if (argument_count != 2) return 2;
  memset(&action, 0, sizeof action);
  action.sa_handler = own_handler;
  if (sigaction(SIGBUS, &action, NULL) != 0) return 2;
  library = dlopen(arguments[1], RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  *(void **)&handle_memory_errors = dlsym(library, "maru_handle_memory_errors");
  if (handle_memory_errors == NULL || handle_memory_errors(0) != 0) return 2;
  if (dlclose(library) != 0) return 2;

  address = mmap(NULL, 4096, PROT_READ, MAP_SHARED, memfd_create("empty", MFD_CLOEXEC), 0);
  if (address == MAP_FAILED) return 2;
  beyond_the_end = (volatile char *)address;
  if (sigsetjmp(landing, 1) == 0) {
    (void)*beyond_the_end;
    fprintf(stderr, "there was no signal\n");
    return 1;
  }
  return 0;
}
