import maru

with maru.MaruHandler() as handler:  # the marud that runs on this host
    handle = handler.alloc(11)  # memory of the pool, private so far
    handle.buf[:] = b"hello world"
    handler.store("greeting", handle)  # every process on this host can find it from now on
    found = handler.retrieve("greeting")  # read where it lies, and kept there for as long as `found` lives
    print(bytes(found.view), handler.batch_exists(["greeting", "nothing"]))
    del found
    handler.delete("greeting")
