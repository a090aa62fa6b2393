/*
 * The devices of a process, over a driver that does as it is told. A process has one driver, so
 * each case is a process of its own.
 */
#include <trireme/trireme.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device_checks.h"
#include "fake_cuda/fake_cuda.h"

/* Runs `body` in a process that begins with the fake driver, scripted. */
static void run(void (*body)(void), const char *script) {
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("TRIREME_CUDA_DRIVER", FAKE_CUDA, 1);
        setenv("TRIREME_NCCL_LIBRARY", FAKE_NCCL, 1);
        unsetenv("TRIREME_CUDA_PLUGIN");
        setenv("FAKE_CUDA", script, 1);
        body();
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void *fake(const char *name) {
    void *const library = dlopen(FAKE_CUDA, RTLD_NOW);
    CHECK(library != NULL);
    void *const function = dlsym(library, name);
    CHECK(function != NULL);
    return function;
}

#define FAKE(type, name) ((type)(intptr_t)fake(name))

/* Every call about CUDA devices fails alike, and writes nothing. */
static void all_fail(trireme_status status, const char *word, const char *other) {
    trireme_device_info info;
    memset(&info, 0x5a, sizeof info);
    info.struct_size = sizeof info;
    const trireme_device_info before = info;
    int32_t count = 7;
    uint64_t unused = 8, total = 9;
    CHECK_FAILS(trireme_device_count(TRIREME_DEVICE_CUDA, &count), status, "trireme_device_count",
                word, other);
    CHECK_FAILS(trireme_device_get_info(0, &info), status, word, other);
    CHECK_FAILS(trireme_device_get_memory(0, &unused, &total), status, word, other);
    CHECK(count == 7 && unused == 8 && total == 9);
    CHECK(memcmp(&info, &before, sizeof info) == 0);
}

static char *report(void) {
    uint64_t length = 0;
    CHECK(trireme_device_report(NULL, 0, &length) == TRIREME_OK);
    char *const text = malloc(length + 1);
    CHECK(text != NULL);
    CHECK(trireme_device_report(text, length + 1, NULL) == TRIREME_OK);
    CHECK(strlen(text) == length);
    return text;
}

static void reports(const char *line) {
    char *const text = report();
    if (strstr(text, line) == NULL) {
        fprintf(stderr, "no \"%s\" in:\n%s", line, text);
        _exit(1);
    }
    free(text);
}

/* ---- what is missing ---- */

static void without_driver(void) {
    setenv("TRIREME_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
    all_fail(TRIREME_ERROR_UNSUPPORTED,
             "no CUDA driver: tried /nowhere/libcuda.so.1: ", "/nowhere/libcuda.so.1");
    reports("\ndriver: no CUDA driver: tried /nowhere/libcuda.so.1: ");
    /* A driver that comes later is found. */
    int32_t count = 0;
    setenv("TRIREME_CUDA_DRIVER", FAKE_CUDA, 1);
    CHECK(trireme_device_count(TRIREME_DEVICE_CUDA, &count) == TRIREME_OK && count == 2);
}

/* A machine may have a driver; then it counts devices. */
static void usual_places(void) {
    int32_t count = -1;
    unsetenv("TRIREME_CUDA_DRIVER");
    if (trireme_device_count(TRIREME_DEVICE_CUDA, &count) == TRIREME_OK) {
        CHECK(count >= 0);
        return;
    }
    CHECK(count == -1);
    CHECK(strstr(trireme_last_error(), "libcuda.so.1: ") != NULL);
}

static void without_plugin(void) {
    setenv("TRIREME_CUDA_PLUGIN", "/nowhere/libtrireme_cuda.so", 1);
    all_fail(TRIREME_ERROR_UNSUPPORTED,
             "no plugin for CUDA: tried /nowhere/libtrireme_cuda.so: ", "");
    reports("plugin: no plugin for CUDA: tried /nowhere/libtrireme_cuda.so: ");
}

static void wrong_plugin(void) {
    setenv("TRIREME_CUDA_PLUGIN", FAKE_NCCL, 1);
    all_fail(TRIREME_ERROR_UNSUPPORTED, FAKE_NCCL, "is not a plugin of Trireme");
}

static void wrong_driver(void) {
    setenv("TRIREME_CUDA_DRIVER", FAKE_NCCL, 1);
    all_fail(TRIREME_ERROR_UNSUPPORTED, FAKE_NCCL, "it is no CUDA driver");
}

static void old_driver(void) {
    all_fail(TRIREME_ERROR_UNSUPPORTED, "it runs CUDA up to 11.8, but this plugin needs 1",
             "install a newer driver");
}

static void unknown_version(void) {
    all_fail(TRIREME_ERROR_UNSUPPORTED, "cuDriverGetVersion answers 719", FAKE_CUDA);
}

static void missing_function(void) {
    all_fail(TRIREME_ERROR_UNSUPPORTED, "it has no cuMemGetInfo", FAKE_CUDA);
}

static void what_is_missing_is_told(void **state) {
    (void)state;
    run(without_driver, "");
    run(usual_places, "");
    run(without_plugin, "");
    run(wrong_plugin, "");
    run(wrong_driver, "");
    run(old_driver, "version=11080");
    run(unknown_version, "fail=cuDriverGetVersion:719");
    run(missing_function, "missing=cuMemGetInfo");
}

/* ---- devices ---- */

static void two_devices(void) {
    int32_t count = 0;
    CHECK(trireme_device_count(TRIREME_DEVICE_CUDA, &count) == TRIREME_OK && count == 2);
    static const char *const uuids[] = {"f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff",
                                        "00010203-0405-0607-0809-0a0b0c0d0e0f"};
    for (int32_t i = 0; i < 2; ++i) {
        trireme_device_info info = TRIREME_DEVICE_INFO_INIT;
        CHECK(trireme_device_get_info(i, &info) == TRIREME_OK);
        CHECK(info.struct_size == sizeof info && info.reserved == 0);
        CHECK(info.capability_major == 9 && info.capability_minor == i);
        CHECK(info.multiprocessors == (uint32_t)FAKE_PROCESSORS(i));
        CHECK(info.memory_bytes == FAKE_TOTAL(i) && info.driver_version == 13000);
        char name[16], bus[16];
        snprintf(name, sizeof name, "Fake GPU %d", i);
        snprintf(bus, sizeof bus, "0000:%02x:00.0", 16 + i);
        CHECK(strcmp(info.name, name) == 0 && strcmp(info.bus_id, bus) == 0);
        CHECK(strcmp(info.uuid, uuids[i]) == 0);
    }
}

static void refuses(int32_t index, const char *value, const char *count) {
    trireme_device_info info = TRIREME_DEVICE_INFO_INIT;
    uint64_t unused = 8, total = 9;
    CHECK_FAILS(trireme_device_get_info(index, &info), TRIREME_ERROR_INVALID_ARGUMENT, value,
                count);
    CHECK_FAILS(trireme_device_get_memory(index, &unused, &total), TRIREME_ERROR_INVALID_ARGUMENT,
                value, count);
    CHECK(info.name[0] == 0 && unused == 8 && total == 9);
}

static void wrong_numbers(void) {
    refuses(2, "index is 2,", "sees 2 CUDA devices");
    refuses(-1, "index is -1,", "sees 2 CUDA devices");
    refuses(INT32_MAX, "index is 2147483647,", "sees 2 CUDA devices");
}

static void no_devices(void) {
    int32_t count = 5;
    CHECK(trireme_device_count(TRIREME_DEVICE_CUDA, &count) == TRIREME_OK && count == 0);
    refuses(0, "index is 0,", "sees 0 CUDA devices");
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    CHECK(trireme_memory_get_info(&count, &info) == TRIREME_OK);
    CHECK(info.kind == TRIREME_MEMORY_KIND_HOST);
    reports("\ndevices: 0\n");
}

static void one_device(void) {
    refuses(1, "index is 1,", "sees 1 CUDA device,");
}

static void devices_are_described(void **state) {
    (void)state;
    run(two_devices, "");
    run(two_devices, "missing=cuMemGetInfoOfTomorrow");
    run(wrong_numbers, "");
    run(no_devices, "devices=0");
    run(one_device, "devices=1");
}

static void memory_of_both(void) {
    void *const own = FAKE(fake_own_context, "fake_push_own_context")();
    for (int32_t i = 0; i < 2; ++i) {
        uint64_t unused = 0, total = 0;
        CHECK(trireme_device_get_memory(i, &unused, &total) == TRIREME_OK);
        CHECK(unused == FAKE_FREE(i) && total == FAKE_TOTAL(i));
        CHECK(FAKE(fake_current, "fake_current_context")() == own);
        CHECK(FAKE(fake_retained, "fake_retained_count")(i) == 0);
    }
}

static void free_memory_leaves_the_context_of_the_caller(void **state) {
    (void)state;
    run(memory_of_both, "");
}

/* ---- a driver that fails ---- */

static const char *failing;

/* Its failure arrives with name and code, what was retained is released, and no output is written.
 */
static void one_function_fails(void) {
    void *const own = FAKE(fake_own_context, "fake_push_own_context")();
    trireme_device_info info = TRIREME_DEVICE_INFO_INIT;
    trireme_memory_info memory = TRIREME_MEMORY_INFO_INIT;
    int32_t count = 7;
    uint64_t unused = 8, total = 9;
    const trireme_status statuses[] = {trireme_device_count(TRIREME_DEVICE_CUDA, &count),
                                       trireme_device_get_info(1, &info),
                                       trireme_device_get_memory(1, &unused, &total),
                                       trireme_memory_get_info(&info, &memory)};
    int failed = 0;
    for (int i = 0; i < 4; ++i) {
        CHECK(statuses[i] == TRIREME_OK || statuses[i] == TRIREME_ERROR_DEVICE);
        failed += statuses[i] != TRIREME_OK;
    }
    CHECK(failed > 0);
    char words[80];
    snprintf(words, sizeof words, "%s answers CUDA_ERROR_LAUNCH_FAILED (719)", failing);
    CHECK(strstr(trireme_last_error(), words) != NULL);
    CHECK((statuses[0] == TRIREME_OK) == (count == 2));
    CHECK((statuses[1] == TRIREME_OK) == (info.name[0] != 0));
    CHECK((statuses[2] == TRIREME_OK) == (unused != 8) && (unused == 8) == (total == 9));
    CHECK((statuses[3] == TRIREME_OK) == (memory.kind != 0));
    CHECK(FAKE(fake_current, "fake_current_context")() == own);
    const int kept = strcmp(failing, "cuDevicePrimaryCtxRelease") == 0;
    CHECK(FAKE(fake_retained, "fake_retained_count")(1) == kept);
    free(report());
}

static void failures_of_the_driver_arrive(void **state) {
    (void)state;
    static const char *const names[] = {"cuInit",
                                        "cuDeviceGetCount",
                                        "cuDeviceGet",
                                        "cuDeviceGetName",
                                        "cuDeviceGetUuid",
                                        "cuDeviceTotalMem",
                                        "cuMemGetInfo",
                                        "cuDeviceGetAttribute",
                                        "cuDeviceGetPCIBusId",
                                        "cuCtxPushCurrent",
                                        "cuCtxPopCurrent",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuPointerGetAttributes",
                                        "cuDevicePrimaryCtxRelease"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        char script[80];
        snprintf(script, sizeof script, "fail=%s:719", names[i]);
        failing = names[i];
        run(one_function_fails, script);
    }
}

static void failure_without_name(void) {
    int32_t count = 0;
    CHECK_FAILS(trireme_device_count(TRIREME_DEVICE_CUDA, &count), TRIREME_ERROR_DEVICE,
                "cuInit answers an unknown error (804)");
}

/* So a driver answers if another library of the parent has used it. */
static void after_fork_of_another_user(void) {
    all_fail(TRIREME_ERROR_INVALID_STATE, "was forked from one that had used the CUDA driver",
             "cuInit answers 3");
    int word = 0;
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    CHECK_FAILS(trireme_memory_get_info(&word, &info), TRIREME_ERROR_INVALID_STATE,
                "was forked from one that had used the CUDA driver");
    reports("\ndriver: cuInit answers 3: process ");
}

static void after_fork(void) {
    int32_t count = 0;
    CHECK(trireme_device_count(TRIREME_DEVICE_CUDA, &count) == TRIREME_OK);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        all_fail(TRIREME_ERROR_INVALID_STATE, "was forked after process", "");
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(trireme_device_count(TRIREME_DEVICE_CUDA, &count) == TRIREME_OK && count == 2);
}

static void a_driver_that_cannot_begin_says_so(void **state) {
    (void)state;
    run(failure_without_name, "fail=cuInit:804");
    run(after_fork, "");
    run(after_fork_of_another_user, "fail=cuInit:3");
}

/* ---- threads ---- */

static void *many_calls(void *unused) {
    (void)unused;
    for (int round = 0; round < 20; ++round) {
        int32_t count = 0;
        uint64_t bytes = 0, total = 0;
        trireme_device_info info = TRIREME_DEVICE_INFO_INIT;
        trireme_memory_info memory = TRIREME_MEMORY_INFO_INIT;
        CHECK(trireme_device_count(TRIREME_DEVICE_CUDA, &count) == TRIREME_OK && count == 2);
        CHECK(trireme_device_get_info(round % 2, &info) == TRIREME_OK);
        CHECK(info.capability_minor == round % 2);
        CHECK(trireme_device_get_memory(round % 2, &bytes, &total) == TRIREME_OK);
        CHECK(bytes == FAKE_FREE(round % 2));
        CHECK(trireme_memory_get_info(&count, &memory) == TRIREME_OK);
    }
    return NULL;
}

static void threads_begin(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; ++i) CHECK(pthread_create(&threads[i], NULL, many_calls, NULL) == 0);
    for (int i = 0; i < 8; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
}

static void any_thread_may_be_the_first(void **state) {
    (void)state;
    run(threads_begin, "");
}

/* ---- whose memory ---- */

static void
is_of(const void *address, trireme_memory_kind kind, int32_t device, void *first, uint64_t bytes) {
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    CHECK(trireme_memory_get_info(address, &info) == TRIREME_OK);
    CHECK(info.kind == kind && info.struct_size == sizeof info);
    const int32_t owner = device < 0 ? TRIREME_DEVICE_HOST : TRIREME_DEVICE_CUDA;
    CHECK(info.device.kind == owner && info.device.index == (device < 0 ? 0 : device));
    CHECK(info.first == first && info.bytes == bytes);
}

static void kinds_of_memory(void) {
    const fake_allocate allocate = FAKE(fake_allocate, "fake_allocate_area");
    static const trireme_memory_kind kinds[] = {TRIREME_MEMORY_KIND_PINNED,
                                                TRIREME_MEMORY_KIND_DEVICE,
                                                TRIREME_MEMORY_KIND_MANAGED};
    for (int type = 1; type <= 3; ++type) {
        for (int32_t device = 0; device < 2; ++device) {
            const size_t bytes = 4096 * (size_t)(type + 3 * device);
            char *const first = allocate(type, device, bytes);
            CHECK(first != NULL);
            is_of(first, kinds[type - 1], device, first, bytes);
            is_of(first + bytes - 1, kinds[type - 1], device, first, bytes);
        }
    }
    int word = 0;
    char *const heap = malloc(1);
    is_of(&word, TRIREME_MEMORY_KIND_HOST, -1, NULL, 0);
    is_of(heap, TRIREME_MEMORY_KIND_HOST, -1, NULL, 0);
    is_of((const void *)(intptr_t)1, TRIREME_MEMORY_KIND_HOST, -1, NULL, 0);
    is_of((const void *)UINTPTR_MAX, TRIREME_MEMORY_KIND_HOST, -1, NULL, 0);
    free(heap);
}

static void memory_without_driver(void) {
    int word = 0;
    setenv("TRIREME_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
    is_of(&word, TRIREME_MEMORY_KIND_HOST, -1, NULL, 0);
    setenv("TRIREME_CUDA_PLUGIN", "/nowhere/libtrireme_cuda.so", 1);
    is_of(&word, TRIREME_MEMORY_KIND_HOST, -1, NULL, 0);
}

static void is_not_told(const void *address, const char *reason) {
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    CHECK_FAILS(trireme_memory_get_info(address, &info), TRIREME_ERROR_DEVICE, reason);
    CHECK(info.kind == 0 && info.bytes == 0);
}

/* An error about an address does not make it the host's. */
static void error_about_an_address(void) {
    int word = 0;
    is_not_told(&word, "cuPointerGetAttributes answers");
    FAKE(fake_use, "fake_use_device")(1);
    is_not_told(&word, "cuPointerGetAttributes answers");
}

/* A driver that knows a device's memory under its context alone. */
static void memory_under_other_contexts(void) {
    const fake_allocate allocate = FAKE(fake_allocate, "fake_allocate_area");
    const fake_retained used = FAKE(fake_retained, "fake_retained_count");
    const fake_current current = FAKE(fake_current, "fake_current_context");
    char *const areas[] = {allocate(2, 0, 4096), allocate(2, 1, 8192)};
    int word = 0;
    is_not_told(areas[0], "cuPointerGetAttributes answers");
    is_not_told(&word, "cuPointerGetAttributes answers");
    CHECK(used(0) == 0 && used(1) == 0 && current() == NULL);
    FAKE(fake_use, "fake_use_device")(1);
    is_not_told(areas[0], "cuPointerGetAttributes answers");
    is_of(areas[1], TRIREME_MEMORY_KIND_DEVICE, 1, areas[1], 8192);
    is_of(&word, TRIREME_MEMORY_KIND_HOST, -1, NULL, 0);
    CHECK(used(0) == 0 && used(1) == 1 && current() == NULL);
    FAKE(fake_use, "fake_use_device")(0);
    void *const own = FAKE(fake_own_context, "fake_push_own_context")();
    is_of(areas[0] + 4095, TRIREME_MEMORY_KIND_DEVICE, 0, areas[0], 4096);
    is_of(areas[1] + 8191, TRIREME_MEMORY_KIND_DEVICE, 1, areas[1], 8192);
    is_of(&word, TRIREME_MEMORY_KIND_HOST, -1, NULL, 0);
    CHECK(used(0) == 1 && used(1) == 1 && current() == own);
}

static void contexts_that_do_not_tell_their_state(void) {
    int word = 0;
    FAKE(fake_use, "fake_use_device")(0);
    is_not_told(&word, "cuDevicePrimaryCtxGetState answers CUDA_ERROR_LAUNCH_FAILED (719)");
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 1);
}

static void an_address_tells_whose_memory_it_is(void **state) {
    (void)state;
    run(kinds_of_memory, "");
    run(error_about_an_address, "fail=cuPointerGetAttributes:1");
    run(error_about_an_address, "fail=cuPointerGetAttributes:201");
    run(memory_under_other_contexts, "strict=1");
    run(contexts_that_do_not_tell_their_state, "strict=1 fail=cuDevicePrimaryCtxGetState:719");
    run(memory_without_driver, "");
}

/* ---- NCCL and the report ---- */

static void everything_is_there(void) {
    CHECK(dlopen(FAKE_NCCL, RTLD_NOW) != NULL);
    char *const text = report();
    const char *const lines[] =
        {"plugin: here, with",
         "\ndriver: " FAKE_CUDA ", CUDA 13.0\n",
         "\ndevices: 2\n",
         "\ndevice 0: Fake GPU 0, compute capability 9.0, 100 multiprocessors, 8192 MiB, "
         "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff, 0000:10:00.0\n",
         "\ndevice 1: Fake GPU 1, compute capability 9.1, 101 multiprocessors, 16384 MiB, ",
         "\nNCCL: " FAKE_NCCL ", 2.28.9\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) CHECK(strstr(text, lines[i]) != NULL);
    char small[8];
    uint64_t length = 0;
    CHECK(trireme_device_report(small, sizeof small, &length) == TRIREME_OK);
    CHECK(strcmp(small, "plugin:") == 0 && length == strlen(text));
    free(text);
}

/* The report loads nothing: another library of the process may want its own copy. */
static void nccl_that_is_not_loaded(void) {
    setenv("FAKE_NCCL", "-1", 1);
    reports("\nNCCL: " FAKE_NCCL ", which the process has not loaded\n");
    CHECK(dlopen(FAKE_NCCL, RTLD_NOW | RTLD_NOLOAD) == NULL);
    setenv("TRIREME_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    reports("\nNCCL: no NCCL: tried /nowhere/libnccl.so.2: there is no such file\n");
}

static void several_nccl(void) {
    CHECK(dlopen(FAKE_NCCL, RTLD_NOW) != NULL && dlopen(FAKE_NCCL_SHORT, RTLD_NOW) != NULL);
    setenv("FAKE_NCCL", "21705", 1);
    reports("it is NCCL 2.17.5, but at least 2.18.0 is needed");
    setenv("FAKE_NCCL", "-1", 1);
    reports("ncclGetVersion answers 1");
    setenv("FAKE_NCCL", "21803", 1);
    reports("\nNCCL: " FAKE_NCCL ", 2.18.3\n");
    setenv("TRIREME_NCCL_LIBRARY", FAKE_NCCL_SHORT, 1);
    reports("\nNCCL: no NCCL: the process has loaded " FAKE_NCCL_SHORT
            ": it has no ncclCommAbort\n");
    CHECK(dlopen("libm.so.6", RTLD_NOW) != NULL);
    setenv("TRIREME_NCCL_LIBRARY", "libm.so.6", 1);
    reports("it is no NCCL: it has no ncclGetVersion");
}

static void the_report_has_what_was_found(void **state) {
    (void)state;
    run(everything_is_there, "");
    run(nccl_that_is_not_loaded, "");
    run(several_nccl, "");
}

/* ---- arguments ---- */

static void arguments(void) {
    int32_t count = 7;
    uint64_t bytes = 0;
    CHECK(trireme_device_count(TRIREME_DEVICE_HOST, &count) == TRIREME_OK && count == 1);
    count = 7;
    CHECK(trireme_device_count(TRIREME_DEVICE_DEFAULT, &count) == TRIREME_OK && count == 1);
    count = 7;
    CHECK_FAILS(trireme_device_count(3, &count), TRIREME_ERROR_INVALID_ARGUMENT, "kind is 3");
    CHECK_FAILS(trireme_device_count(-1, &count), TRIREME_ERROR_INVALID_ARGUMENT, "kind is -1");
    CHECK(count == 7);
    CHECK_FAILS(trireme_device_count(TRIREME_DEVICE_CUDA, NULL), TRIREME_ERROR_INVALID_ARGUMENT,
                "out_count is NULL");
    CHECK_FAILS(trireme_device_get_info(0, NULL), TRIREME_ERROR_INVALID_ARGUMENT,
                "out_info is NULL");
    CHECK_FAILS(trireme_device_get_memory(0, NULL, &bytes), TRIREME_ERROR_INVALID_ARGUMENT,
                "out_free is NULL");
    CHECK_FAILS(trireme_device_get_memory(0, &bytes, NULL), TRIREME_ERROR_INVALID_ARGUMENT,
                "out_total is NULL");
    CHECK_FAILS(trireme_device_report(NULL, 1, &bytes), TRIREME_ERROR_INVALID_ARGUMENT,
                "text is NULL");
    CHECK_FAILS(trireme_memory_get_info(&bytes, NULL), TRIREME_ERROR_INVALID_ARGUMENT,
                "out_info is NULL");
    trireme_memory_info memory = TRIREME_MEMORY_INFO_INIT;
    CHECK_FAILS(trireme_memory_get_info(NULL, &memory), TRIREME_ERROR_INVALID_ARGUMENT,
                "address is NULL");
    CHECK(memory.kind == 0 && bytes == 0);
    memory.struct_size = sizeof memory - 1;
    CHECK_FAILS(trireme_memory_get_info(&bytes, &memory), TRIREME_ERROR_INVALID_ARGUMENT,
                "struct_size is 31");
    trireme_device_info info = {0};
    CHECK_FAILS(trireme_device_get_info(0, &info), TRIREME_ERROR_INVALID_ARGUMENT,
                "struct_size is 0", "TRIREME_DEVICE_INFO_INIT");
    /* A newer program's struct: what this library does not know becomes 0. */
    struct {
        trireme_device_info info;
        uint64_t newer;
    } larger;
    memset(&larger, 0x5a, sizeof larger);
    larger.info.struct_size = sizeof larger;
    CHECK(trireme_device_get_info(0, &larger.info) == TRIREME_OK);
    CHECK(larger.newer == 0 && larger.info.struct_size == sizeof larger);
    CHECK(strcmp(larger.info.name, "Fake GPU 0") == 0);
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    run(arguments, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_told),
        cmocka_unit_test(devices_are_described),
        cmocka_unit_test(free_memory_leaves_the_context_of_the_caller),
        cmocka_unit_test(failures_of_the_driver_arrive),
        cmocka_unit_test(a_driver_that_cannot_begin_says_so),
        cmocka_unit_test(any_thread_may_be_the_first),
        cmocka_unit_test(an_address_tells_whose_memory_it_is),
        cmocka_unit_test(the_report_has_what_was_found),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
