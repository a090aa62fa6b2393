/*
 * The kernel's facts about the calling process. This header needs no other file of its folder, so
 * programs in C and C++ can include it alone.
 */
#ifndef TRIREME_TESTS_OWN_PROCESS_H
#define TRIREME_TESTS_OWN_PROCESS_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A test that counted nothing could not fail. */
static inline void own_process_is_hidden(const char *what) {
    perror(what);
    exit(99);
}

/* Entries of a folder whose names have `word` in them. */
static inline int64_t count_entries(const char *path, const char *word) {
    int64_t count = 0;
    const struct dirent *entry;
    DIR *const folder = opendir(path);
    if (folder == NULL) own_process_is_hidden(path);
    while ((entry = readdir(folder)) != NULL) count += strstr(entry->d_name, word) != NULL;
    closedir(folder);
    return count;
}

static inline int64_t count_descriptors(void) {
    return count_entries("/proc/self/fd", "");
}

static inline int64_t count_own_threads(void) {
    return count_entries("/proc/self/task", "");
}

static inline int64_t resident_bytes(void) {
    long long pages = 0;
    FILE *const file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%*s %lld", &pages) != 1) own_process_is_hidden("statm");
    fclose(file);
    return pages * 4096;
}

#endif
