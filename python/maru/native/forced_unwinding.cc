// Keeps for ever a thread whose stack somebody else unwinds through frames of this extension.
//
// CPython before 3.14 ends a daemon thread where it asks for the GIL while the interpreter ends: pthread_exit() unwinds its
// stack, and runs the destructors of C++ frames, ours and pybind11's, which use Python without the GIL, and end the process
// where they may not throw. Any call of Python may ask for the GIL, so it is not enough to guard the places where we do. Every
// C++ frame that has something to destroy or to catch names the personality routine of the C++ library, which unwinding asks
// first; this extension is linked so that its frames name the one below (--wrap). CPython 3.14 and later keep such threads
// themselves.
//
// Such a thread holds no lock of Python's, and stays until the process is gone.
#include <unistd.h>
#include <unwind.h>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class language,
                                                _Unwind_Exception* thrown, _Unwind_Context* frame);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class language,
                                                _Unwind_Exception* thrown, _Unwind_Context* frame) {
  while ((actions & _UA_FORCE_UNWIND) != 0) ::pause();  // a signal handler may run meanwhile
  return __real___gxx_personality_v0(version, actions, language, thrown, frame);
}

}  // extern "C"
