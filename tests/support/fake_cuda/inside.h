/* Functions of the two halves of the fake driver for each other. */
#ifndef TRIREME_TESTS_FAKE_CUDA_INSIDE_H
#define TRIREME_TESTS_FAKE_CUDA_INSIDE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- fake_cuda.c ---- */
int scripted(const char *key, int otherwise);
int refusal(const char *function);
void add_area(void *first, size_t bytes, int type, int device);
void remove_area(void *first);
/* The device whose primary context is current and retained, or -1. */
int current_device(void);
void *primary_context(int device);
void *fake_current_context(void);

/* ---- work.cpp ---- */
int sticky_code(void);
void *find_work(const char *name);

#ifdef __cplusplus
}
#endif

#endif
