/*
 * A NCCL for tests of the search. The variable FAKE_NCCL sets its version. Its other functions are
 * there and fail. A build with WITHOUT_ABORT lacks ncclCommAbort.
 */
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))
#define NAME(name)           \
    EXPORTED int name(void); \
    int name(void) {         \
        return 1;            \
    }

EXPORTED int ncclGetVersion(int *version);
int ncclGetVersion(int *version) {
    const char *const scripted = getenv("FAKE_NCCL");
    *version = scripted == NULL ? 22809 : atoi(scripted);
    return *version < 0;
}

NAME(ncclAllGather)
NAME(ncclAllReduce)
NAME(ncclBroadcast)
#ifndef WITHOUT_ABORT
NAME(ncclCommAbort)
#endif
NAME(ncclCommDestroy)
NAME(ncclCommFinalize)
NAME(ncclCommGetAsyncError)
NAME(ncclCommInitRankConfig)
NAME(ncclGetErrorString)
NAME(ncclGetLastError)
NAME(ncclGetUniqueId)
NAME(ncclGroupEnd)
NAME(ncclGroupStart)
NAME(ncclRecv)
NAME(ncclReduce)
NAME(ncclReduceScatter)
NAME(ncclSend)
