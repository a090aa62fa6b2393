/* Checks in a process of their own, where a driver that fails may stay broken. */
#ifndef DEVICE_CHECKS_H
#define DEVICE_CHECKS_H

#include <stdio.h>
#include <string.h>
#include <trireme/trireme.h>
#include <unistd.h>

/* Ends the process of a case, which its test hears. */
#define CHECK(condition)                                                           \
    do {                                                                           \
        if (!(condition)) {                                                        \
            fprintf(stderr, "%s:%d: %s: \"%s\"\n", __FILE__, __LINE__, #condition, \
                    trireme_last_error());                                         \
            _exit(1);                                                              \
        }                                                                          \
    } while (0)

/* A failure whose message has the words. */
#define CHECK_FAILS(call, status, ...)                              \
    do {                                                            \
        CHECK((call) == (status));                                  \
        const char *const words[] = {__VA_ARGS__, NULL};            \
        for (int at = 0; words[at] != NULL; ++at) {                 \
            CHECK(strstr(trireme_last_error(), words[at]) != NULL); \
        }                                                           \
    } while (0)

#endif
