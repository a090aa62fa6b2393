#include "passage.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda/fake_cuda.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards all that is static here */

static void *checked(void *pointer) {
    if (pointer == NULL) abort();
    return pointer;
}

void *real_function(const char *name) {
    return checked(dlsym(RTLD_NEXT, name));
}

static void *fake(const char *name) {
    static void *driver;
    pthread_mutex_lock(&mutex);
    if (driver == NULL) driver = checked(dlopen(getenv("TRIREME_CUDA_DRIVER"), RTLD_NOW));
    pthread_mutex_unlock(&mutex);
    return checked(dlsym(driver, name));
}

#define FAKE(type, name) ((type)(intptr_t)fake(name))

/* ---- communicators ---- */

struct taken {
    const trireme_communicator *communicator;
    struct seat seat;
    struct taken *next;
};
static struct taken *seats;

void take_seat(const trireme_communicator *communicator, const struct seat *seat) {
    struct taken *const taken = checked(malloc(sizeof *taken));
    taken->communicator = communicator;
    taken->seat = *seat;
    pthread_mutex_lock(&mutex);
    taken->next = seats;
    seats = taken;
    pthread_mutex_unlock(&mutex);
}

void leave_seat(const trireme_communicator *communicator) {
    pthread_mutex_lock(&mutex);
    for (struct taken **at = &seats; *at != NULL; at = &(*at)->next) {
        if ((*at)->communicator != communicator) continue;
        struct taken *const gone = *at;
        *at = gone->next;
        free(gone);
        break;
    }
    pthread_mutex_unlock(&mutex);
}

bool find_seat(const trireme_communicator *communicator, struct seat *out) {
    pthread_mutex_lock(&mutex);
    const struct taken *found = seats;
    while (found != NULL && found->communicator != communicator) found = found->next;
    if (found != NULL) *out = found->seat;
    pthread_mutex_unlock(&mutex);
    return found != NULL;
}

void *stream_for(int device, int rank) {
    return rank % 3 == 2 ? NULL : FAKE(fake_stream, "fake_user_stream")(device);
}

/* ---- memory ---- */

enum { SMALLEST = 9, CLASSES = 32, MOST_DEVICES = 8 };
struct spare {
    char *device;
    struct spare *next;
};
static struct spare *spares[MOST_DEVICES][CLASSES];

static char *take_memory(int device, uint64_t bytes, int *size_class) {
    int at = SMALLEST;
    while (1ull << at < bytes) ++at;
    *size_class = at;
    pthread_mutex_lock(&mutex);
    struct spare *const spare = spares[device][at];
    if (spare != NULL) spares[device][at] = spare->next;
    pthread_mutex_unlock(&mutex);
    if (spare == NULL) {
        return checked(FAKE(fake_memory, "fake_device_memory")(device, (size_t)1 << at));
    }
    char *const memory = spare->device;
    free(spare);
    return memory;
}

static void give_memory(int device, int size_class, char *memory) {
    struct spare *const spare = checked(malloc(sizeof *spare));
    spare->device = memory;
    pthread_mutex_lock(&mutex);
    spare->next = spares[device][size_class];
    spares[device][size_class] = spare;
    pthread_mutex_unlock(&mutex);
}

struct shadow {
    const trireme_buffer *buffer;
    char *host, *device;
    uint64_t bytes;
    struct shadow *next;
};
static struct shadow *shadows;

void *shadow_of_buffer(const trireme_buffer *buffer, int device, void *data, uint64_t bytes) {
    struct shadow *const shadow = checked(malloc(sizeof *shadow));
    *shadow = (struct shadow){buffer, checked(malloc(bytes + 1)), data, bytes, NULL};
    if (bytes > 0) {
        FAKE(fake_reads, "fake_queue_read")(device, NULL, shadow->host, data, bytes);
        FAKE(fake_synchronizes, "fake_synchronize")(device, NULL);
    }
    pthread_mutex_lock(&mutex);
    shadow->next = shadows;
    shadows = shadow;
    pthread_mutex_unlock(&mutex);
    return shadow->host;
}

static struct shadow *shadow_with(const trireme_buffer *buffer) {
    struct shadow *found = shadows;
    while (found != NULL && found->buffer != buffer) found = found->next;
    return found;
}

void *find_shadow(const trireme_buffer *buffer) {
    pthread_mutex_lock(&mutex);
    const struct shadow *const found = shadow_with(buffer);
    pthread_mutex_unlock(&mutex);
    return found == NULL ? NULL : found->host;
}

/* Its memory stays for a started call, which may end later. */
void drop_shadow(const trireme_buffer *buffer) {
    pthread_mutex_lock(&mutex);
    for (struct shadow **at = &shadows; *at != NULL; at = &(*at)->next) {
        if ((*at)->buffer != buffer) continue;
        struct shadow *const gone = *at;
        *at = gone->next;
        free(gone);
        break;
    }
    pthread_mutex_unlock(&mutex);
}

/* The place on the device of a range of a buffer that lives, or NULL. */
static char *place_in_buffer(const char *host, uint64_t bytes) {
    char *place = NULL;
    pthread_mutex_lock(&mutex);
    for (const struct shadow *each = shadows; each != NULL && place == NULL; each = each->next) {
        if (host < each->host) continue;
        const uint64_t at = (uint64_t)(host - each->host);
        if (at + bytes <= each->bytes) place = each->device + at;
    }
    pthread_mutex_unlock(&mutex);
    return place;
}

/* ---- one call ---- */

void begin_passage(struct passage *passage, const trireme_communicator *communicator,
                   const trireme_operation_options *options) {
    memset(passage, 0, sizeof *passage);
    passage->options = options;
    passage->is_on = find_seat(communicator, &passage->seat);
    if (!passage->is_on) return;
    const trireme_operation_options none = TRIREME_OPERATION_OPTIONS_INIT;
    if (options == NULL) options = &none;
    passage->changed = none;
    if (options->struct_size != sizeof *options || options->stream.kind != 0) {
        passage->seat.stream = NULL; /* these options are refused, or name the default stream */
        return;
    }
    passage->changed = *options;
    passage->changed.stream.kind = TRIREME_DEVICE_CUDA;
    passage->changed.stream.native = passage->seat.stream;
    passage->options = &passage->changed;
}

void add_piece(struct passage *passage, const void **pointer, uint64_t count, uint64_t blocks,
               trireme_dtype dtype, bool writes) {
    enum { MOST_BYTES = 1 << 30 };
    uint64_t bytes = 0;
    if (!passage->is_on || *pointer == NULL || __builtin_mul_overflow(count, blocks, &bytes) ||
        __builtin_mul_overflow(bytes, trireme_dtype_bytes(dtype), &bytes) || bytes == 0 ||
        bytes > MOST_BYTES) {
        return;
    }
    const size_t n = ++passage->piece_count;
    passage->pieces = checked(realloc(passage->pieces, n * sizeof *passage->pieces));
    passage->pieces[n - 1] =
        (struct piece){pointer, (char *)(intptr_t)*pointer, NULL, bytes, writes};
}

static int by_address(const void *a, const void *b) {
    const struct block *const one = a, *const other = b;
    return (one->host > other->host) - (one->host < other->host);
}

/* Ranges that overlap become one. */
static void make_blocks(struct passage *passage) {
    if (passage->piece_count == 0) return;
    struct block *const blocks = checked(calloc(passage->piece_count, sizeof *blocks));
    for (size_t i = 0; i < passage->piece_count; ++i) {
        blocks[i].host = passage->pieces[i].host;
        blocks[i].bytes = passage->pieces[i].bytes;
    }
    qsort(blocks, passage->piece_count, sizeof *blocks, by_address);
    size_t last = 0;
    for (size_t i = 1; i < passage->piece_count; ++i) {
        const uint64_t at = (uint64_t)(blocks[i].host - blocks[last].host);
        if (at >= blocks[last].bytes) {
            blocks[++last] = blocks[i];
        } else if (at + blocks[i].bytes > blocks[last].bytes) {
            blocks[last].bytes = at + blocks[i].bytes;
        }
    }
    passage->blocks = blocks;
    passage->block_count = last + 1;
}

void move_in(struct passage *passage) {
    make_blocks(passage);
    const int device = passage->seat.device;
    for (size_t i = 0; i < passage->block_count; ++i) {
        struct block *const block = &passage->blocks[i];
        block->size_class = -1;
        block->device = place_in_buffer(block->host, block->bytes);
        if (block->device == NULL) {
            char *const first = take_memory(device, block->bytes, &block->size_class);
            /* At the end, so that the driver sees who goes beyond it. */
            const uint64_t room = (1ull << block->size_class) - block->bytes;
            block->device = first + room / 16 * 16;
        }
        FAKE(fake_writes, "fake_queue_write")
        (device, passage->seat.stream, block->device, block->host, block->bytes);
    }
    for (size_t i = 0; i < passage->piece_count; ++i) {
        struct piece *const piece = &passage->pieces[i];
        const struct block *block = passage->blocks;
        while (piece->host < block->host || piece->host >= block->host + block->bytes) ++block;
        piece->device = block->device + (piece->host - block->host);
        *piece->pointer = piece->device;
        piece->pointer = NULL; /* it ends with the call */
    }
}

void move_out(struct passage *passage) {
    const int device = passage->seat.device;
    for (size_t i = 0; i < passage->piece_count; ++i) {
        const struct piece *const piece = &passage->pieces[i];
        if (!piece->writes) continue;
        FAKE(fake_reads, "fake_queue_read")
        (device, passage->seat.stream, piece->host, piece->device, piece->bytes);
    }
    if (passage->piece_count > 0) {
        FAKE(fake_synchronizes, "fake_synchronize")(device, passage->seat.stream);
    }
    for (size_t i = 0; i < passage->block_count; ++i) {
        const struct block *const block = &passage->blocks[i];
        if (block->size_class < 0) continue;
        const uint64_t room = (1ull << block->size_class) - block->bytes;
        give_memory(device, block->size_class, block->device - room / 16 * 16);
    }
    free(passage->pieces);
    free(passage->blocks);
    passage->pieces = NULL;
    passage->blocks = NULL;
    passage->piece_count = passage->block_count = 0;
}

/* ---- what is told at the end ---- */

enum { MOST_FUNCTIONS = 128 };
static struct {
    const char *function;
    unsigned count;
} refused[MOST_FUNCTIONS];

trireme_status note_status(const char *function, trireme_status status) {
    if (status != TRIREME_ERROR_UNSUPPORTED ||
        strstr(trireme_last_error(), "CUDA device") == NULL) {
        return status;
    }
    pthread_mutex_lock(&mutex);
    size_t at = 0;
    while (at < MOST_FUNCTIONS - 1 && refused[at].function != NULL &&
           strcmp(refused[at].function, function) != 0) {
        ++at;
    }
    refused[at].function = function;
    ++refused[at].count;
    pthread_mutex_unlock(&mutex);
    return status;
}

bool device_is_content(void) {
    for (size_t i = 0; i < MOST_FUNCTIONS && refused[i].function != NULL; ++i) {
        printf("over device: %s was refused %u times\n", refused[i].function, refused[i].count);
    }
    const char *const complaint = FAKE(fake_finishes, "fake_finish")();
    if (*complaint != 0) printf("over device: %s\n", complaint);
    return *complaint == 0;
}
