/*
 * A library with the functions of cblas that the tests need, which can behave badly: FAKE_BLAS in
 * the environment names how, and FAKE_BLIS for the one like BLIS. The build makes several of it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef FAKE_64
typedef int64_t number;
#define NAME(name) name##64_
#else
typedef int32_t number;
#define NAME(name) name
#endif

static int threads = 7;
static number largest;
static int calls;

static int behaves(const char *how) {
#ifdef FAKE_BLIS
    const char *asked = getenv("FAKE_BLIS");
#else
    const char *asked = getenv("FAKE_BLAS");
#endif
    return asked != NULL && strcmp(asked, how) == 0;
}

static void set_threads(int64_t count) {
    threads = behaves("few threads") && count > 2 ? 2 : (int)count;
}

#ifdef FAKE_BLIS
void bli_thread_set_num_threads(int64_t count);
void bli_thread_set_num_threads(int64_t count) {
    set_threads(count);
}

int64_t bli_thread_get_num_threads(void);
int64_t bli_thread_get_num_threads(void) {
    return threads;
}

int64_t bli_info_get_blas_int_type_size(void);
int64_t bli_info_get_blas_int_type_size(void) {
    return behaves("wide numbers") ? 64 : 32;
}

const char *bli_info_get_version_str(void);
const char *bli_info_get_version_str(void) {
    return "Fake 0.9\n";
}
#else
void NAME(openblas_set_num_threads)(int count);
void NAME(openblas_set_num_threads)(int count) {
    set_threads(count);
}

int NAME(openblas_get_num_threads)(void);
int NAME(openblas_get_num_threads)(void) {
    return threads;
}

const char *NAME(openblas_get_config)(void);
const char *NAME(openblas_get_config)(void) {
#ifdef FAKE_BITS
    return "Fake 1.2 USE64BITINT ";
#else
    return "Fake 1.2 ";
#endif
}
#endif

/* The largest of rows, columns and depth since the last question. */
int64_t fake_blas_largest(void);
int64_t fake_blas_largest(void) {
    const int64_t answer = largest;
    largest = 0;
    return answer;
}

/* One unit in the last place more: bits that do not repeat. */
static int disturbed(const void *a) {
    return (behaves("counts") && ++calls % 2 == 0) ||
           (behaves("looks at addresses") && (uintptr_t)a % 16 != 0);
}

#define PRODUCT(name, type)                                                                    \
    void NAME(name)(int order, int left, int right, number rows, number columns, number depth, \
                    type factor, const type *a, number a_step, const type *b, number b_step,   \
                    type kept, type *c, number c_step);                                        \
    void NAME(name)(int order, int left, int right, number rows, number columns, number depth, \
                    type factor, const type *a, number a_step, const type *b, number b_step,   \
                    type kept, type *c, number c_step) {                                       \
        if (order != 101 || behaves("does nothing")) return;                                   \
        largest = rows > largest ? rows : largest;                                             \
        largest = columns > largest ? columns : largest;                                       \
        largest = depth > largest ? depth : largest;                                           \
        const int turned = right == 112 && !behaves("forgets to transpose");                   \
        const double more = disturbed(a) ? 1 + 1e-7 * (sizeof(type) == 4) + 1e-15 : 1;         \
        for (number i = 0; i < rows; ++i) {                                                    \
            for (number j = 0; j < columns; ++j) {                                             \
                double sum = 0;                                                                \
                for (number k = 0; k < depth; ++k) {                                           \
                    sum += (double)a[left == 112 ? k * a_step + i : i * a_step + k] *          \
                           (double)b[turned ? j * b_step + k : k * b_step + j];                \
                }                                                                              \
                type *const at = c + i * c_step + j;                                           \
                *at = (type)(more * (factor * sum + (kept == 0 ? 0 : kept * (double)*at)));    \
            }                                                                                  \
        }                                                                                      \
    }

PRODUCT(cblas_sgemm, float)
#ifndef FAKE_HALF
PRODUCT(cblas_dgemm, double)
#endif
