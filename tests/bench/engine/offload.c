/* The step of AdamW with all of its state in a file. Beside it are the disk's top speed, and the
 * same step with the state in memory. */
#include <string.h>

#include "disk.h"
#include "engine.h"

enum { UNITS = 16, WARM_UPS = 2 /* the first reads nothing */ };

static trireme_offload_info info_of(const struct way *way) {
    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    MUST(trireme_optimizer_get_offload_info(way->optimizer, &info));
    return info;
}

static void print_about(const trireme_offload_info *info) {
    printf("# offload in %s: %s%s; %s%s\n", info->path, info->direct ? "O_DIRECT is in use" : "",
           info->why_not_direct, info->io_uring ? "io_uring is in use" : "threads in its place, ",
           info->why_not_io_uring);
}

void row_offload(void) {
    static const char *const KINDS[DISK_KINDS] = {"read", "write", "mixed"};
    const uint64_t size = (elements + UNITS - 1) / UNITS;
    struct way file = {.name = "offload_step",
                       .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                       .adamw = true,
                       .offload_path = folder};
    make(&file, UNITS, &size, 1);
    const trireme_offload_info about = info_of(&file);
    print_about(&about);
    if (!about.direct) {
        printf("# left out: through the system's cache no figure is the disk's\n");
        unmake(&file);
        return;
    }
    struct way memory = {.name = "offload_memory",
                         .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                         .adamw = true};
    make(&memory, UNITS, &size, 1);
    struct disk disk;
    disk_open(&disk, folder, about.file_bytes);
    double times[DISK_KINDS][MOST_ROUNDS], moved[MOST_ROUNDS], waited[MOST_ROUNDS];
    for (int round = -WARM_UPS; round < rounds; ++round) {
        for (int kind = 0; round >= 0 && kind < DISK_KINDS; ++kind) {
            times[kind][round] = disk_time(&disk, (enum disk_kind)kind);
        }
        const trireme_offload_info before = info_of(&file);
        const double step = timed_update(&file, UNITS, round < 0);
        const trireme_offload_info after = info_of(&file);
        const double compute = timed_update(&memory, UNITS, round < 0);
        if (round < 0) continue;
        file.times[round] = step;
        memory.times[round] = compute;
        moved[round] = (double)(after.read_bytes - before.read_bytes + after.written_bytes -
                                before.written_bytes);
        waited[round] = (after.waited_seconds - before.waited_seconds) * 1e6;
    }
    const trireme_offload_info end = info_of(&file);
    if (end.failed_writes > 0) {
        fprintf(stderr, "%d writes have failed: %s\n", (int)end.failed_writes,
                strerror(end.failed_errno));
        exit(1);
    }
    print_number("offload_disk_bytes", (double)disk.bytes);
    for (int kind = 0; kind < DISK_KINDS; ++kind) {
        char name[64];
        const struct disk_way *const way = &disk.fastest[kind];
        snprintf(name, sizeof name, "offload_disk_%s_ring", KINDS[kind]);
        print_number(name, way->ring ? 1 : 0);
        snprintf(name, sizeof name, "offload_disk_%s_in_flight", KINDS[kind]);
        print_number(name, way->in_flight);
        snprintf(name, sizeof name, "offload_disk_%s_request_bytes", KINDS[kind]);
        print_number(name, (double)way->request_bytes);
        snprintf(name, sizeof name, "offload_disk_%s", KINDS[kind]);
        print_rounds(name, times[kind]);
    }
    print_rounds("offload_moved", moved);
    print_rounds("offload_waited", waited);
    print_rounds(file.name, file.times);
    print_rounds(memory.name, memory.times);
    disk_close(&disk);
    unmake(&memory);
    unmake(&file);
}
