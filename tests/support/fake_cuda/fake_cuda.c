/*
 * A CUDA driver for tests. Its devices work by work.cpp. The variable FAKE_CUDA scripts it, in
 * words:
 * - devices=N. The default is 2. With 0 cuInit() answers CUDA_ERROR_NO_DEVICE.
 * - version=N. The newest CUDA that it runs; the default is 13000.
 * - fail=NAME:CODE. The function NAME answers CODE. With @N behind it the first N calls under this
 *   script go well, and with @N! so do those after the next one.
 * - missing=NAME. There is no such function.
 * - strict=1. Addresses are known under a context alone, a device's under its primary one alone.
 * - mig=1. The devices are parts of one GPU.
 * - those of work.cpp.
 *
 * It keeps rules of a driver that callers break. Nothing works before cuInit() has succeeded.
 * Free memory is that of the current context. A context is retained before use, and released.
 */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "inside.h"

#define EXPORTED __attribute__((visibility("default")))

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 100, INVALID_DEVICE = 101 };
enum { INVALID_CONTEXT = 201 };
enum { MOST_DEVICES = 8, MOST_AREAS = 4096, DEEPEST = 8 };

static _Atomic int initialised;
static _Atomic int retained[MOST_DEVICES];
static char primary[MOST_DEVICES], own;
static _Thread_local void *stack[DEEPEST];
static _Thread_local int depth;

/* The number behind `key` in the script, or `otherwise`. */
int scripted(const char *key, int otherwise) {
    const char *const script = getenv("FAKE_CUDA");
    const char *const found = script == NULL ? NULL : strstr(script, key);
    return found == NULL ? otherwise : atoi(found + strlen(key));
}

static int devices(void) {
    return scripted("devices=", 2);
}

/* Calls so far of the function that this script lets fail. */
static int count_call(const char *script) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static char last[256];
    static int calls;
    pthread_mutex_lock(&mutex);
    if (strncmp(last, script, sizeof last - 1) != 0) calls = 0;
    strncpy(last, script, sizeof last - 1);
    const int before = calls++;
    pthread_mutex_unlock(&mutex);
    return before;
}

/* The code that the script lets this call of a function answer. */
static int failure(const char *function) {
    char key[80];
    snprintf(key, sizeof key, "fail=%s:", function);
    const char *const script = getenv("FAKE_CUDA");
    const char *const found = script == NULL ? NULL : strstr(script, key);
    if (found == NULL) return 0;
    char *end = NULL;
    const int code = (int)strtol(found + strlen(key), &end, 10);
    if (*end != '@') return code;
    const int first = (int)strtol(end + 1, &end, 10);
    const int before = count_call(script);
    return before == first || (before > first && *end != '!') ? code : 0;
}

/* Whether the script has the word missing=NAME, of this name as a whole. */
static int is_missing(const char *function) {
    const char *const script = getenv("FAKE_CUDA");
    const char *const found = script == NULL ? NULL : strstr(script, "missing=");
    if (found == NULL) return 0;
    const char *const name = found + strlen("missing=");
    return strcspn(name, " ") == strlen(function) && strncmp(name, function, strlen(function)) == 0;
}

/* The first answer of every function but cuInit(). */
int refusal(const char *function) {
    const int code = atomic_load(&initialised) == 0 ? NOT_INITIALIZED : failure(function);
    return code != 0 ? code : sticky_code();
}

#define ENTER()                             \
    do {                                    \
        const int code = refusal(__func__); \
        if (code != 0) return code;         \
    } while (0)
#define ENTER_DEVICE(device)                                              \
    do {                                                                  \
        ENTER();                                                          \
        if ((device) < 0 || (device) >= devices()) return INVALID_DEVICE; \
    } while (0)

static int cuInit(unsigned flags) {
    if (flags != 0) return INVALID_VALUE;
    const int code = failure("cuInit");
    if (code != 0) return code;
    if (devices() == 0) return NO_DEVICE;
    atomic_store(&initialised, 1);
    return OK;
}

static int cuDeviceGetCount(int *count) {
    ENTER();
    *count = devices();
    return OK;
}

static int cuDeviceGet(int *device, int ordinal) {
    ENTER_DEVICE(ordinal);
    *device = ordinal;
    return OK;
}

static int cuDeviceGetName(char *name, int bytes, int device) {
    ENTER_DEVICE(device);
    snprintf(name, (size_t)bytes, "Fake GPU %d", device);
    return OK;
}

static int cuDeviceGetUuid(char *uuid, int device) {
    ENTER_DEVICE(device);
    for (int i = 0; i < 16; ++i) uuid[i] = (char)(0xf0 + 16 * device + i);
    return OK;
}

static int cuDeviceTotalMem(size_t *bytes, int device) {
    ENTER_DEVICE(device);
    *bytes = FAKE_TOTAL(device);
    return OK;
}

static int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER_DEVICE(device);
    switch (attribute) {
        case 16: *value = FAKE_PROCESSORS(device); return OK;
        case 75: *value = 9; return OK;
        case 76: *value = device; return OK;
        case 102: *value = scripted("vmm=", 1); return OK;
        default: return INVALID_VALUE;
    }
}

static int cuDeviceGetPCIBusId(char *text, int bytes, int device) {
    ENTER_DEVICE(device);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", scripted("mig=", 0) ? 16 : 16 + device);
    return OK;
}

static int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER_DEVICE(device);
    atomic_fetch_add(&retained[device], 1);
    *context = &primary[device];
    return OK;
}

static int cuDevicePrimaryCtxRelease(int device) {
    ENTER_DEVICE(device);
    if (atomic_fetch_sub(&retained[device], 1) <= 0) return INVALID_CONTEXT;
    return OK;
}

static int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    ENTER_DEVICE(device);
    *flags = 0;
    *active = atomic_load(&retained[device]) > 0;
    return OK;
}

static int cuCtxPushCurrent(void *context) {
    ENTER();
    if (depth == DEEPEST) return OUT_OF_MEMORY;
    stack[depth++] = context;
    return OK;
}

static int cuCtxPopCurrent(void **context) {
    if (depth == 0) return INVALID_CONTEXT;
    *context = stack[--depth];
    ENTER(); /* it is popped all the same */
    return OK;
}

static int cuMemGetInfo(size_t *free_bytes, size_t *total) {
    ENTER();
    for (int i = 0; depth > 0 && i < MOST_DEVICES; ++i) {
        if (stack[depth - 1] != &primary[i] || atomic_load(&retained[i]) == 0) continue;
        *free_bytes = FAKE_FREE(i);
        *total = FAKE_TOTAL(i);
        return OK;
    }
    return INVALID_CONTEXT;
}

static struct {
    char *first;
    size_t bytes;
    int type, device;
} areas[MOST_AREAS];
static int area_count;
static pthread_mutex_t areas_mutex = PTHREAD_MUTEX_INITIALIZER;

void add_area(void *first, size_t bytes, int type, int device) {
    pthread_mutex_lock(&areas_mutex);
    int index = 0;
    while (index < area_count && areas[index].bytes != 0) ++index;
    if (index == MOST_AREAS) abort();
    if (index == area_count) ++area_count;
    areas[index].first = first;
    areas[index].bytes = bytes;
    areas[index].type = type;
    areas[index].device = device;
    pthread_mutex_unlock(&areas_mutex);
}

void remove_area(void *first) {
    pthread_mutex_lock(&areas_mutex);
    for (int i = 0; i < area_count; ++i) {
        if (areas[i].first == first) areas[i].bytes = 0;
    }
    pthread_mutex_unlock(&areas_mutex);
}

static int
cuPointerGetAttributes(unsigned count, int *attributes, void **data, unsigned long long address) {
    ENTER();
    const int strict = scripted("strict=", 0);
    if (strict && depth == 0) return INVALID_CONTEXT;
    pthread_mutex_lock(&areas_mutex);
    int found = -1;
    for (int i = 0; i < area_count; ++i) {
        if (address - (uintptr_t)areas[i].first < areas[i].bytes) found = i;
    }
    if (strict && found >= 0 && stack[depth - 1] != &primary[areas[found].device]) {
        pthread_mutex_unlock(&areas_mutex);
        return INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; ++i) {
        switch (attributes[i]) {
            case 2: *(unsigned *)data[i] = found < 0 ? 0 : areas[found].type == 1 ? 1 : 2; break;
            case 8: *(unsigned *)data[i] = found >= 0 && areas[found].type == 3; break;
            case 9: *(int *)data[i] = found < 0 ? -2 : areas[found].device; break;
            case 11: *(char **)data[i] = found < 0 ? NULL : areas[found].first; break;
            case 12: *(size_t *)data[i] = found < 0 ? 0 : areas[found].bytes; break;
            default: break;
        }
    }
    pthread_mutex_unlock(&areas_mutex);
    return OK;
}

static int cuGetErrorName(int result, const char **name) {
    switch (result) {
        case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
        case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; return OK;
        case 900: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; return OK;
        default: *name = NULL; return INVALID_VALUE;
    }
}

#define FUNCTION(name) \
    { #name, (void (*)(void))(name) }
static const struct {
    const char *name;
    void (*function)(void);
} functions[] = {
    FUNCTION(cuInit),
    FUNCTION(cuDeviceGetCount),
    FUNCTION(cuDeviceGet),
    FUNCTION(cuDeviceGetName),
    FUNCTION(cuDeviceGetUuid),
    FUNCTION(cuDeviceTotalMem),
    FUNCTION(cuDeviceGetAttribute),
    FUNCTION(cuDeviceGetPCIBusId),
    FUNCTION(cuDevicePrimaryCtxRetain),
    FUNCTION(cuDevicePrimaryCtxRelease),
    FUNCTION(cuDevicePrimaryCtxGetState),
    FUNCTION(cuCtxPushCurrent),
    FUNCTION(cuCtxPopCurrent),
    FUNCTION(cuMemGetInfo),
    FUNCTION(cuPointerGetAttributes),
    FUNCTION(cuGetErrorName),
};

EXPORTED int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
    *version = scripted("version=", 13000);
    return failure("cuDriverGetVersion");
}

EXPORTED int
cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found) {
    *out = NULL;
    *found = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    if (version < 12000 || flags != 0) return INVALID_VALUE;
    if (is_missing(name)) return OK;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
        if (strcmp(functions[i].name, name) != 0) continue;
        memcpy(out, &functions[i].function, sizeof *out);
        *found = 0;
    }
    if (*found != 0) {
        *out = find_work(name);
        *found = *out == NULL;
    }
    return OK;
}

int current_device(void) {
    for (int i = 0; depth > 0 && i < MOST_DEVICES; ++i) {
        if (stack[depth - 1] == &primary[i] && atomic_load(&retained[i]) > 0) return i;
    }
    return -1;
}

void *primary_context(int device) {
    return &primary[device];
}

EXPORTED void *fake_allocate_area(int type, int device, size_t bytes);
void *fake_allocate_area(int type, int device, size_t bytes) {
    const int access = type == 2 ? PROT_NONE : PROT_READ | PROT_WRITE;
    char *const first = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (first == MAP_FAILED) return NULL;
    add_area(first, bytes, type, device);
    return first;
}

EXPORTED void *fake_current_context(void);
void *fake_current_context(void) {
    return depth == 0 ? NULL : stack[depth - 1];
}

EXPORTED int fake_retained_count(int device);
int fake_retained_count(int device) {
    return atomic_load(&retained[device]);
}

EXPORTED void fake_use_device(int device);
void fake_use_device(int device) {
    atomic_fetch_add(&retained[device], 1);
}

EXPORTED void *fake_push_own_context(void);
void *fake_push_own_context(void) {
    stack[depth++] = &own;
    return &own;
}
