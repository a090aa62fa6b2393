/* The job's store: the results of each call, its refusals, and that a refused call writes nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <trireme/trireme.h>
#include <unistd.h>

#define OK(call) assert_int_equal(TRIREME_OK, call)
#define UNTOUCHED ((trireme_store *)(uintptr_t)0x5a5a)
#define PATIENCE 100000000000u

static char file_url[64];

static int give_token(void **state) {
    (void)state;
    snprintf(file_url, sizeof file_url, "file:///tmp/test-api-store-%d", (int)getpid());
    return setenv("TRIREME_TOKEN", "a token of the tests of the store", 1);
}

static int take_file(void **state) {
    (void)state;
    unlink(file_url + strlen("file://"));
    return 0;
}

/* Two ends of one store: over TCP, or in a file. */
struct ends {
    trireme_store *one;
    trireme_store *two;
};

static struct ends open_both(int in_file) {
    struct ends ends;
    char url[64];
    uint64_t length = 0;
    if (in_file) {
        OK(trireme_store_connect(file_url, NULL, &ends.one));
    } else {
        OK(trireme_store_serve(NULL, NULL, &ends.one));
    }
    OK(trireme_store_get_address(ends.one, url, sizeof url, &length));
    assert_int_equal(length, strlen(url));
    OK(trireme_store_connect(url, NULL, &ends.two));
    return ends;
}

static void close_both(struct ends ends) {
    trireme_store_destroy(ends.two);
    trireme_store_destroy(ends.one);
    take_file(NULL);
}

static void each_call_does_what_it_says(void **state) {
    (void)state;
    for (int in_file = 0; in_file < 2; ++in_file) {
        const struct ends ends = open_both(in_file);
        char value[8] = "-------";
        uint64_t size = 7;
        int32_t flag = 7;
        int64_t sum = 7;
        OK(trireme_store_get(ends.two, "k", value, sizeof value, &size, &flag));
        assert_int_equal(flag, 0);
        assert_int_equal(size, 0);
        assert_string_equal(value, "-------");
        OK(trireme_store_set(ends.one, "k", "abc\0de", 6));
        OK(trireme_store_get(ends.two, "k", value, sizeof value, &size, &flag));
        assert_int_equal(flag, 1);
        assert_int_equal(size, 6);
        assert_memory_equal(value, "abc\0de-", 7);
        /* A value that does not fit is left out, and its size is returned. */
        OK(trireme_store_set(ends.two, "k", "0123456789", 10));
        OK(trireme_store_get(ends.one, "k", value, 4, &size, &flag));
        assert_int_equal(size, 10);
        assert_memory_equal(value, "0123de-", 7);
        OK(trireme_store_get(ends.one, "k", NULL, 0, NULL, &flag));
        assert_int_equal(flag, 1);
        OK(trireme_store_set(ends.one, "empty", NULL, 0));
        OK(trireme_store_get(ends.two, "empty", NULL, 0, &size, &flag));
        assert_int_equal(flag, 1);
        assert_int_equal(size, 0);

        OK(trireme_store_add(ends.one, "n", 40, NULL));
        OK(trireme_store_add(ends.two, "n", 2, &sum));
        assert_int_equal(sum, 42);
        OK(trireme_store_compare_exchange(ends.one, "c", NULL, 0, "1", 1, &flag));
        assert_int_equal(flag, 1);
        OK(trireme_store_compare_exchange(ends.two, "c", NULL, 0, "2", 1, &flag));
        assert_int_equal(flag, 0);
        OK(trireme_store_compare_exchange(ends.two, "c", "", 0, "2", 1, &flag));
        assert_int_equal(flag, 0);
        OK(trireme_store_compare_exchange(ends.two, "c", "1", 1, "2", 1, &flag));
        assert_int_equal(flag, 1);
        OK(trireme_store_delete(ends.one, "c", &flag));
        assert_int_equal(flag, 1);
        OK(trireme_store_delete(ends.two, "c", &flag));
        assert_int_equal(flag, 0);
        OK(trireme_store_delete(ends.two, "c", NULL));
        OK(trireme_store_wait(ends.one, (const char *const[]){"k", "n"}, 2, 0));
        OK(trireme_store_wait(ends.one, NULL, 0, 0));
        close_both(ends);
    }
}

static void *wait_for_key(void *store) {
    const char *const keys[] = {"late"};
    return (void *)(intptr_t)trireme_store_wait(store, keys, 1, PATIENCE);
}

static void a_wait_ends_with_its_key_or_with_its_store(void **state) {
    (void)state;
    int late = 0;
    for (int in_file = 0; in_file < 2; ++in_file) {
        for (int destroy = 0; destroy < 2; ++destroy) {
            const struct ends ends = open_both(in_file);
            pthread_t thread;
            void *result = NULL;
            assert_int_equal(pthread_create(&thread, NULL, wait_for_key, ends.two), 0);
            usleep(20000);
            /* A call that waits keeps no other one waiting. */
            OK(trireme_store_add(ends.two, "n", 1, NULL));
            if (destroy) {
                trireme_store_destroy(ends.two);
            } else {
                OK(trireme_store_set(ends.one, "late", "", 0));
            }
            assert_int_equal(pthread_join(thread, &result), 0);
            close_both(ends);
            /* On a busy machine the thread may begin only when its store has gone: once more. */
            if (destroy && (intptr_t)result == TRIREME_ERROR_INVALID_HANDLE && ++late < 100) {
                --destroy;
                continue;
            }
            assert_int_equal((intptr_t)result, destroy ? TRIREME_ERROR_CANCELLED : TRIREME_OK);
        }
    }
}

#define REFUSED(code, part, call)                                                                 \
    do {                                                                                          \
        assert_int_equal(code, call);                                                             \
        if (strstr(trireme_last_error(), part) == NULL) fail_msg("\"%s\"", trireme_last_error()); \
    } while (0)

static void wrong_arguments_are_named_and_write_nothing(void **state) {
    (void)state;
    const struct ends ends = open_both(0);
    trireme_store *const store = ends.one;
    char value[4] = "---", long_key[1026];
    uint64_t size = 7;
    int32_t flag = 7;
    int64_t sum = 7;
    memset(long_key, 'k', sizeof long_key);
    long_key[1025] = 0;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    REFUSED(bad, "key is NULL", trireme_store_set(store, NULL, "v", 1));
    REFUSED(bad, "key is empty", trireme_store_set(store, "", "v", 1));
    REFUSED(bad, "above 1024", trireme_store_set(store, long_key, "v", 1));
    REFUSED(bad, "key is no UTF-8", trireme_store_set(store, "\xff", "v", 1));
    REFUSED(bad, "value is NULL", trireme_store_set(store, "k", NULL, 1));
    REFUSED(bad, "above 1048576", trireme_store_set(store, "k", "", (1 << 20) + 1));
    REFUSED(bad, "above 1048576", trireme_store_set(store, "k", "", UINT64_MAX));
    REFUSED(bad, "value is NULL", trireme_store_get(store, "k", NULL, 1, &size, &flag));
    REFUSED(bad, "out_found is NULL", trireme_store_get(store, "k", value, 3, &size, NULL));
    REFUSED(bad, "keys is NULL", trireme_store_wait(store, NULL, 1, 0));
    REFUSED(bad, "keys[1] is NULL",
            trireme_store_wait(store, (const char *const[]){"k", NULL}, 2, 0));
    REFUSED(bad, "above 4096", trireme_store_wait(store, (const char *const[]){"k"}, 4097, 0));
    REFUSED(bad, "key is NULL", trireme_store_add(store, NULL, 1, &sum));
    REFUSED(bad, "expected is NULL",
            trireme_store_compare_exchange(store, "k", NULL, 1, "v", 1, &flag));
    REFUSED(bad, "out_exchanged is NULL",
            trireme_store_compare_exchange(store, "k", NULL, 0, "v", 1, NULL));
    REFUSED(bad, "key is NULL", trireme_store_delete(store, NULL, &flag));
    REFUSED(bad, "text is NULL", trireme_store_get_address(store, NULL, 1, &size));
    OK(trireme_store_set(store, "text", "words", 5));
    REFUSED(TRIREME_ERROR_INVALID_STATE, "\"text\" is no number",
            trireme_store_add(store, "text", 1, &sum));
    REFUSED(TRIREME_ERROR_TIMEOUT, "\"k\" is not there",
            trireme_store_wait(store, (const char *const[]){"k"}, 1, 1000000));
    OK(trireme_store_get(ends.two, "k", NULL, 0, NULL, &flag));
    assert_int_equal(flag, 0);
    flag = 7;

    close_both(ends);
    const trireme_status stale = TRIREME_ERROR_INVALID_HANDLE;
    REFUSED(stale, "store", trireme_store_set(store, "k", "v", 1));
    REFUSED(stale, "store", trireme_store_get(store, "k", value, 3, &size, &flag));
    REFUSED(stale, "store", trireme_store_wait(store, NULL, 0, 0));
    REFUSED(stale, "store", trireme_store_add(store, "k", 1, &sum));
    REFUSED(stale, "store", trireme_store_compare_exchange(store, "k", NULL, 0, "v", 1, &flag));
    REFUSED(stale, "store", trireme_store_delete(store, "k", &flag));
    REFUSED(stale, "store", trireme_store_get_address(store, value, 3, &size));
    trireme_store_destroy(store);
    trireme_store_destroy(NULL);
    assert_string_equal(value, "---");
    assert_int_equal(size, 7);
    assert_int_equal(flag, 7);
    assert_int_equal(sum, 7);
}

static void stores_that_cannot_be_opened_say_why(void **state) {
    (void)state;
    trireme_store *store = UNTOUCHED;
    trireme_store_options options = TRIREME_STORE_OPTIONS_INIT;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    REFUSED(bad, "out_store is NULL", trireme_store_serve(NULL, NULL, NULL));
    REFUSED(bad, "out_store is NULL", trireme_store_connect(NULL, NULL, NULL));
    REFUSED(bad, "every address", trireme_store_serve("tcp://0.0.0.0:0", NULL, &store));
    REFUSED(bad, "served at tcp://", trireme_store_serve(file_url, NULL, &store));
    REFUSED(bad, "none of tcp://", trireme_store_connect("", NULL, &store));
    REFUSED(bad, "no UTF-8", trireme_store_connect("\xff", NULL, &store));
    REFUSED(bad, "from 1 to 65535", trireme_store_connect("tcp://127.0.0.1:0", NULL, &store));
    REFUSED(TRIREME_ERROR_SYSTEM, "No such file",
            trireme_store_connect("file:///no/such/folder/store", NULL, &store));
    options.flags = 1;
    REFUSED(bad, "flags", trireme_store_serve(NULL, &options, &store));
    options.flags = 0;
    options.struct_size = 8;
    REFUSED(bad, "struct_size", trireme_store_serve(NULL, &options, &store));

    /* A server was here a moment ago, and there is none now. */
    char url[64];
    OK(trireme_store_serve(NULL, NULL, &store));
    OK(trireme_store_get_address(store, url, sizeof url, NULL));
    trireme_store *other = NULL;
    OK(trireme_store_connect(url, NULL, &other));
    trireme_store_destroy(store);
    store = UNTOUCHED;
    REFUSED(TRIREME_ERROR_PEER_LOST, url, trireme_store_add(other, "n", 1, NULL));
    trireme_store_destroy(other);
    options.struct_size = sizeof options;
    options.timeout_ns = 20000000;
    REFUSED(TRIREME_ERROR_TIMEOUT, url, trireme_store_connect(url, &options, &store));

    setenv("TRIREME_TOKEN", "short", 1);
    REFUSED(TRIREME_ERROR_AUTHENTICATION, "5 bytes", trireme_store_serve(NULL, NULL, &store));
    unsetenv("TRIREME_TOKEN");
    REFUSED(TRIREME_ERROR_AUTHENTICATION, "TRIREME_TOKEN",
            trireme_store_connect(url, NULL, &store));
    give_token(NULL);
    assert_ptr_equal(store, UNTOUCHED);
}

/* In the child, whose verdict is its exit code: which of the calls did something else. */
static int call_after_fork(trireme_store *inherited, const char *url) {
    trireme_store *store = UNTOUCHED;
    const trireme_status answers[] = {trireme_store_serve(NULL, NULL, &store),
                                      trireme_store_connect(url, NULL, &store)};
    for (int i = 0; i < 2; ++i) {
        if (answers[i] != TRIREME_ERROR_INVALID_STATE) return 1 + i;
    }
    if (strstr(trireme_last_error(), "forked") == NULL || store != UNTOUCHED) return 3;
    if (trireme_store_add(inherited, "n", 1, NULL) != TRIREME_ERROR_INVALID_HANDLE) return 4;
    if (strstr(trireme_last_error(), "before fork") == NULL) return 5;
    trireme_store_destroy(inherited);
    return 0;
}

static void a_forked_child_gets_no_store(void **state) {
    (void)state;
    trireme_store *store = NULL;
    char url[64];
    int64_t sum = 0;
    int how = 0;
    OK(trireme_store_serve(NULL, NULL, &store));
    OK(trireme_store_get_address(store, url, sizeof url, NULL));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(call_after_fork(store, url));
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    OK(trireme_store_add(store, "n", 1, &sum)); /* its parent's is as it was */
    assert_int_equal(sum, 1);
    trireme_store_destroy(store);
}

/* A process that serves, has a client in the middle of a call, and is killed: others hear of it. */
static void a_killed_server_is_an_error_at_once(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        /* A program of its own: this one has used the library, so its child may not. */
        char number[16];
        snprintf(number, sizeof number, "%d", ends[1]);
        execl("/proc/self/exe", "serve", "serve", number, (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    char url[64] = "";
    assert_true(read(ends[0], url, sizeof url - 1) > 0);
    close(ends[0]);
    trireme_store *store = NULL;
    OK(trireme_store_connect(url, NULL, &store));
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_key, store), 0);
    usleep(20000);
    kill(child, SIGKILL);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal((intptr_t)result, TRIREME_ERROR_PEER_LOST);
    waitpid(child, NULL, 0);
    REFUSED(TRIREME_ERROR_PEER_LOST, url, trireme_store_add(store, "n", 1, NULL));
    trireme_store_destroy(store);
}

static int serve(int out) {
    trireme_store *store = NULL;
    char url[64];
    if (trireme_store_serve(NULL, NULL, &store) != TRIREME_OK) return 1;
    if (trireme_store_get_address(store, url, sizeof url, NULL) != TRIREME_OK) return 1;
    if (write(out, url, strlen(url)) < 0) return 1;
    close(out);
    sleep(100);
    return 1;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "serve") == 0) return serve(atoi(argv[2]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_does_what_it_says),
        cmocka_unit_test(a_wait_ends_with_its_key_or_with_its_store),
        cmocka_unit_test(wrong_arguments_are_named_and_write_nothing),
        cmocka_unit_test(stores_that_cannot_be_opened_say_why),
        cmocka_unit_test(a_forked_child_gets_no_store),
        cmocka_unit_test(a_killed_server_is_an_error_at_once),
    };
    return cmocka_run_group_tests_name("store", tests, give_token, take_file);
}
