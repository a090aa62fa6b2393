/* Meshes: places, groups, and the communicators of their axes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define UNTOUCHED_MESH ((trireme_mesh *)(uintptr_t)0x6b6b)
#define UNTOUCHED ((trireme_communicator *)(uintptr_t)0x5a5a)
#define MOST 8

static const char *const cube[] = {"pipeline", "data", "tensor"};

static trireme_mesh_options
axes_of(const char *const *names, const int32_t *sizes, uint32_t count) {
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_names = names;
    options.axis_sizes = sizes;
    options.axis_count = count;
    return options;
}

/* The sum of 8^rank over a communicator: which ranks it has. */
static int64_t members_of(struct verdict *verdict, trireme_communicator *communicator, int rank) {
    int64_t mine = 1ll << (3 * rank);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, &mine, &mine, 1, TRIREME_DTYPE_I64,
                                     TRIREME_REDUCTION_SUM, NULL));
    return mine;
}

struct shape {
    int world_size;
    int32_t sizes[3]; /* as given: pipeline, data, tensor */
    int32_t whole[3]; /* with the inferred size */
    trireme_mesh_order order;
    struct verdict verdicts[MOST];
};

/* Where a rank is, by counting through all places with the slowest axis outside. */
static void place_of(const struct shape *shape, int rank, int32_t at[3]) {
    const int fast = shape->order == TRIREME_MESH_ORDER_FIRST_FASTEST ? 0 : 2;
    int32_t count = 0, i[3];
    for (i[2 - fast] = 0; i[2 - fast] < shape->whole[2 - fast]; ++i[2 - fast]) {
        for (i[1] = 0; i[1] < shape->whole[1]; ++i[1]) {
            for (i[fast] = 0; i[fast] < shape->whole[fast]; ++i[fast]) {
                if (count++ == rank) memcpy(at, i, sizeof i);
            }
        }
    }
}

static void use_mesh(trireme_communicator *communicator, int rank, void *context) {
    struct shape *const shape = context;
    struct verdict *const verdict = &shape->verdicts[rank];
    trireme_mesh_options options = axes_of(cube, shape->sizes, 3);
    options.order = shape->order;
    trireme_mesh *mesh = NULL;
    if (!EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_create(communicator, &options, &mesh))) {
        return;
    }
    int32_t mine[3];
    place_of(shape, rank, mine);
    for (int other = 0; other < shape->world_size; ++other) {
        int32_t at[3], found[3] = {-1, -1, -1}, back = -1;
        place_of(shape, other, at);
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_get_coordinates(mesh, other, found, 3));
        EXPECT(verdict, memcmp(at, found, sizeof at) == 0);
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_get_rank(mesh, at, 3, &back));
        EXPECT(verdict, back == other);
    }
    for (int mask = 1; mask < 8; ++mask) {
        const char *names[3];
        uint32_t named = 0;
        for (int axis = 2; axis >= 0; --axis) {
            if ((mask >> axis & 1) != 0) names[named++] = cube[axis];
        }
        int32_t expected[MOST], ranks[MOST] = {0};
        uint64_t count = 0, found = 0;
        int64_t members = 0;
        for (int other = 0; other < shape->world_size; ++other) {
            int32_t at[3] = {0};
            place_of(shape, other, at);
            bool same = true;
            for (int axis = 0; axis < 3; ++axis) {
                same = same && ((mask >> axis & 1) != 0 || at[axis] == mine[axis]);
            }
            if (!same) continue;
            expected[count++] = other;
            members += 1ll << (3 * other);
        }
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mesh_get_group(mesh, names, named, rank, NULL, 0, &found));
        EXPECT(verdict, found == count);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mesh_get_group(mesh, names, named, rank, ranks, count, NULL));
        EXPECT(verdict, memcmp(ranks, expected, sizeof *ranks * count) == 0);
        trireme_communicator *together = NULL;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mesh_create_communicator(mesh, names, named, NULL, &together));
        EXPECT(verdict, members_of(verdict, together, rank) == members);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_communicator_get_original_ranks(together, ranks, count));
        EXPECT(verdict, memcmp(ranks, expected, sizeof *ranks * count) == 0);
        if (named == 1) {
            trireme_communicator *axis = NULL, *again = NULL;
            int32_t size = 0, place = -1;
            int number = mask == 1 ? 0 : mask == 2 ? 1 : 2;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_mesh_get_axis_communicator(mesh, names[0], &axis));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_mesh_get_axis_communicator(mesh, names[0], &again));
            EXPECT(verdict, axis == again);
            EXPECT(verdict, members_of(verdict, axis, rank) == members);
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_get_axis_size(mesh, names[0], &size));
            EXPECT(verdict, size == shape->whole[number] && (uint64_t)size == count);
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_rank(axis, &place));
            EXPECT(verdict, place == mine[number]);
        }
        trireme_communicator_destroy(together);
    }
    trireme_mesh_destroy(mesh);
}

static void ranks_are_where_counting_puts_them_and_meet_along_each_axis(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {.world_size = 1, .sizes = {1, 1, 1}, .whole = {1, 1, 1}},
        {.world_size = 2, .sizes = {1, 0, 1}, .whole = {1, 2, 1}},
        {.world_size = 3, .sizes = {0, 1, 1}, .whole = {3, 1, 1}},
        {.world_size = 4, .sizes = {1, 2, 0}, .whole = {1, 2, 2}},
        {.world_size = 5, .sizes = {1, 1, 5}, .whole = {1, 1, 5}},
        {.world_size = 6, .sizes = {3, 0, 2}, .whole = {3, 1, 2}},
        {.world_size = 8, .sizes = {2, 2, 2}, .whole = {2, 2, 2}},
        {.world_size = 8, .sizes = {1, 0, 2}, .whole = {1, 4, 2}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
        for (trireme_mesh_order order = 0; order <= TRIREME_MESH_ORDER_FIRST_FASTEST; ++order) {
            struct shape shape = shapes[i];
            shape.order = order;
            run_ranks(shape.world_size, use_mesh, &shape);
            assert_verdicts(shape.verdicts, shape.world_size);
        }
    }
}

/* ---- who keeps what alive ---- */

static void end_in_any_order(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    static const char *const names[] = {"data", "tensor"};
    static const int32_t sizes[] = {2, 2};
    const trireme_mesh_options options = axes_of(names, sizes, 2);
    trireme_mesh *mesh = NULL;
    trireme_communicator *axis = NULL, *both = NULL, *none = UNTOUCHED;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_create(communicator, &options, &mesh));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_get_axis_communicator(mesh, "data", &axis));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_mesh_create_communicator(mesh, names, 2, NULL, &both));
    trireme_communicator_destroy(communicator);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(axis, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(both, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_mesh_create_communicator(mesh, names, 2, NULL, &none));
    EXPECT(verdict, none == UNTOUCHED);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(both, NULL));
    trireme_mesh_destroy(mesh);
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE, trireme_barrier(axis, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_mesh_get_axis_communicator(mesh, "data", &axis));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(both, NULL));
    trireme_mesh_destroy(mesh); /* stale */
    trireme_mesh_destroy(NULL);
    trireme_communicator_destroy(both);
}

static void a_mesh_and_its_communicators_end_in_any_order(void **state) {
    (void)state;
    struct verdict verdicts[4] = {0};
    run_ranks(4, end_in_any_order, verdicts);
    assert_verdicts(verdicts, 4);
}

static void fail_one_axis(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    static const char *const names[] = {"data", "tensor"};
    static const int32_t sizes[] = {2, 2};
    const trireme_mesh_options options = axes_of(names, sizes, 2);
    trireme_mesh *mesh = NULL;
    trireme_communicator *data = NULL, *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_create(communicator, &options, &mesh));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_get_axis_communicator(mesh, "data", &data));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_get_axis_communicator(mesh, "tensor", &tensor));
    /* Ranks 0 and 1 are one tensor group, 2 and 3 the other. */
    if (rank == 0) EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_abort(tensor, "mine"));
    EXPECT_STATUS(verdict, rank < 2 ? TRIREME_ERROR_ABORTED : TRIREME_OK,
                  trireme_barrier(tensor, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(data, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    trireme_mesh_destroy(mesh);
}

static void a_failed_axis_harms_no_other(void **state) {
    (void)state;
    struct verdict verdicts[4] = {0};
    run_ranks(4, fail_one_axis, verdicts);
    assert_verdicts(verdicts, 4);
}

/* ---- disagreement and wrong arguments ---- */

struct disagreement {
    int kind;
    struct verdict verdicts[4];
};

static void disagree(trireme_communicator *communicator, int rank, void *context) {
    struct disagreement *const disagreement = context;
    struct verdict *const verdict = &disagreement->verdicts[rank];
    const char *names[] = {"data", "tensor"};
    int32_t sizes[] = {2, 2};
    trireme_mesh_options options = axes_of(names, sizes, 2);
    trireme_mesh *mesh = UNTOUCHED_MESH;
    trireme_communicator *child = UNTOUCHED;
    const bool odd = rank == 2;
    if (odd && disagreement->kind == 0) names[1] = "pipeline";
    if (odd && disagreement->kind == 1) sizes[0] = 4, sizes[1] = 1;
    if (odd && disagreement->kind == 2) options.order = TRIREME_MESH_ORDER_FIRST_FASTEST;
    if (odd && disagreement->kind == 3) options.axis_count = 1, sizes[0] = 4;
    trireme_status status;
    if (odd && disagreement->kind == 4) {
        status = trireme_communicator_split(communicator, 0, 0, NULL, &child);
    } else if (disagreement->kind == 5) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_create(communicator, &options, &mesh));
        status = trireme_mesh_create_communicator(mesh, names + odd, 1, NULL, &child);
        trireme_mesh_destroy(mesh);
        mesh = UNTOUCHED_MESH;
    } else {
        status = trireme_mesh_create(communicator, &options, &mesh);
    }
    EXPECT(verdict, status == TRIREME_ERROR_MISMATCH);
    EXPECT(verdict, mesh == UNTOUCHED_MESH && child == UNTOUCHED);
    EXPECT(verdict, strstr(trireme_last_error(), "axes of a mesh") != NULL);
}

static void meshes_that_differ_are_a_mismatch_on_all_ranks(void **state) {
    (void)state;
    for (int kind = 0; kind < 6; ++kind) {
        struct disagreement disagreement = {.kind = kind};
        run_ranks(4, disagree, &disagreement);
        assert_verdicts(disagreement.verdicts, 4);
    }
}

static void ask_wrongly(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const char *names[] = {"data", "tensor"};
    int32_t sizes[] = {2, 2};
    trireme_mesh *mesh = UNTOUCHED_MESH;
    trireme_mesh_options options = axes_of(names, sizes, 2);
#define REFUSED(call) EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT, call)
    sizes[1] = 3;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    EXPECT(verdict, strstr(trireme_last_error(), "data 2 x tensor 3") != NULL);
    EXPECT(verdict, strstr(trireme_last_error(), "make 6, but the communicator has 4") != NULL);
    sizes[1] = -2;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    sizes[0] = sizes[1] = 0;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    sizes[0] = sizes[1] = 2;
    names[1] = NULL;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    names[1] = "data";
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    names[1] = "tensor";
    options.order = 3;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    options.order = 0;
    options.flags = 1;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    options.flags = 0;
    options.axis_count = 0;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    options.axis_count = TRIREME_MESH_MAX_AXES + 1;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    options.axis_count = 2;
    options.axis_names = NULL;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    options.axis_names = names;
    options.axis_sizes = NULL;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    options.axis_sizes = sizes;
    options.struct_size = 16;
    REFUSED(trireme_mesh_create(communicator, &options, &mesh));
    options.struct_size = sizeof options;
    REFUSED(trireme_mesh_create(communicator, NULL, &mesh));
    REFUSED(trireme_mesh_create(communicator, &options, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_mesh_create(NULL, &options, &mesh));
    EXPECT(verdict, mesh == UNTOUCHED_MESH);
    /* All that was refused before the others heard of it. */
    if (!EXPECT_STATUS(verdict, TRIREME_OK, trireme_mesh_create(communicator, &options, &mesh))) {
        return;
    }

    int32_t numbers[4] = {-7, -7, -7, -7};
    uint64_t count = 77;
    trireme_communicator *child = UNTOUCHED;
    const char *twice[] = {"data", "data"}, *unknown[] = {"dota"}, *nothing[] = {NULL};
    REFUSED(trireme_mesh_get_axis_size(mesh, "dota", numbers));
    EXPECT(verdict, strstr(trireme_last_error(), "it has data, tensor") != NULL);
    REFUSED(trireme_mesh_get_axis_size(mesh, NULL, numbers));
    REFUSED(trireme_mesh_get_axis_size(mesh, "data", NULL));
    REFUSED(trireme_mesh_get_coordinates(mesh, 4, numbers, 2));
    REFUSED(trireme_mesh_get_coordinates(mesh, -1, numbers, 2));
    REFUSED(trireme_mesh_get_coordinates(mesh, 0, numbers, 1));
    REFUSED(trireme_mesh_get_coordinates(mesh, 0, NULL, 2));
    const int32_t outside[2] = {0, 2}, inside[2] = {1, 1};
    REFUSED(trireme_mesh_get_rank(mesh, outside, 2, numbers));
    REFUSED(trireme_mesh_get_rank(mesh, inside, 1, numbers));
    REFUSED(trireme_mesh_get_rank(mesh, inside, UINT64_MAX, numbers));
    REFUSED(trireme_mesh_get_rank(mesh, NULL, 2, numbers));
    REFUSED(trireme_mesh_get_rank(mesh, inside, 2, NULL));
    REFUSED(trireme_mesh_get_group(mesh, names, 0, 0, numbers, 4, &count));
    REFUSED(trireme_mesh_get_group(mesh, NULL, 1, 0, numbers, 4, &count));
    REFUSED(trireme_mesh_get_group(mesh, twice, 2, 0, numbers, 4, &count));
    REFUSED(trireme_mesh_get_group(mesh, unknown, 1, 0, numbers, 4, &count));
    REFUSED(trireme_mesh_get_group(mesh, nothing, 1, 0, numbers, 4, &count));
    REFUSED(trireme_mesh_get_group(mesh, names, 2, 4, numbers, 4, &count));
    REFUSED(trireme_mesh_get_group(mesh, names, 2, 0, numbers, 3, &count));
    REFUSED(trireme_mesh_get_group(mesh, names, 2, 0, NULL, 4, &count));
    REFUSED(trireme_mesh_get_axis_communicator(mesh, "dota", &child));
    REFUSED(trireme_mesh_get_axis_communicator(mesh, NULL, &child));
    REFUSED(trireme_mesh_get_axis_communicator(mesh, "data", NULL));
    REFUSED(trireme_mesh_create_communicator(mesh, twice, 2, NULL, &child));
    REFUSED(trireme_mesh_create_communicator(mesh, unknown, 1, NULL, &child));
    REFUSED(trireme_mesh_create_communicator(mesh, names, 3, NULL, &child));
    REFUSED(trireme_mesh_create_communicator(mesh, names, 2, NULL, NULL));
    trireme_child_options group = TRIREME_CHILD_OPTIONS_INIT;
    group.flags = 1;
    REFUSED(trireme_mesh_create_communicator(mesh, names, 2, &group, &child));
    EXPECT(verdict, numbers[0] == -7 && numbers[3] == -7 && count == 77 && child == UNTOUCHED);
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_mesh_get_coordinates(NULL, 0, numbers, 2));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_mesh_get_axis_size((trireme_mesh *)communicator, "data", numbers));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    trireme_mesh_destroy(mesh);
}

static void wrong_arguments_leave_communicator_and_memory_as_they_were(void **state) {
    (void)state;
    struct verdict verdicts[4] = {0};
    run_ranks(4, ask_wrongly, verdicts);
    assert_verdicts(verdicts, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_where_counting_puts_them_and_meet_along_each_axis),
        cmocka_unit_test(a_mesh_and_its_communicators_end_in_any_order),
        cmocka_unit_test(a_failed_axis_harms_no_other),
        cmocka_unit_test(meshes_that_differ_are_a_mismatch_on_all_ranks),
        cmocka_unit_test(wrong_arguments_leave_communicator_and_memory_as_they_were),
    };
    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
