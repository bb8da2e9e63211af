// What this program is when it is started as one of the processes of a test: --role NAME ARGUMENT...
#pragma once

namespace maru::test {

int run_puppet(int argument_count, char** arguments);         // puppet.h
int run_churner(int argument_count, char** arguments);        // churner.h
int run_keeper(int argument_count, char** arguments);         // keeper.h
int run_hot_path(int argument_count, char** arguments);       // hot_path_test.cc
int run_attach_as(int argument_count, char** arguments);      // access_test.cc
int run_ask_as(int argument_count, char** arguments);         // access_test.cc
int run_read_as(int argument_count, char** arguments);        // readers_test.cc
int run_store_as(int argument_count, char** arguments);       // user_limits_test.cc
int run_connect_often(int argument_count, char** arguments);  // hostile_socket_test.cc
int run_tenant_worker(int argument_count, char** arguments);  // tenant_worker.h
int run_vandal(int argument_count, char** arguments);         // vandal.cc
int run_aimer(int argument_count, char** arguments);          // aimer.cc
int run_scribbler(int argument_count, char** arguments);      // scribbler_test.cc

}  // namespace maru::test
