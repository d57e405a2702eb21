/* A batch out of an array of images: rows by index, cropped, padded, flipped, and each value looked up in a table.
 *
 *     indices ─> image ─places of rows and columns─> strip of bytes ─table─> rows of the batch
 *
 * In: images of uint8 in any strides, and steps that say where each row and column of the result comes from, as
 * fastload/native/arrays.py defines them. Out: every value of the result, written once. No arithmetic is done with
 * values: the caller's table says what becomes of each, so results are those of whoever made the table.
 * The values are moved by fastload/native/src/arrays_rows.h, and looked up by fastload/native/src/arrays_table.h.
 */
#include "fastload.h"

#include <stdlib.h>
#include <string.h>

#include "arrays_rows.h"
#include "arrays_table.h"

/* Places are computed in 32 bits: the caller sees to it that no side is longer. */
#define FARTHEST (1 << 30)
#define NOWHERE (-1)
#define WRONG (-2)

/* Bytes that wait for their values to be looked up: a part of the first-level cache. */
#define STRIP (1 << 14)
/* Of the image after the next, so much is asked for ahead: what the processor's own prefetching finds late. */
#define AHEAD 1024
/* What is written at once and is larger than this is gone from the second-level cache before anybody reads it, and
 * with it all that lay there: it is written past the caches. For 512 images of 3x32x32 in float32, 15 % faster. */
#define STREAMED (1 << 22)

enum kind { OFFSET, SHIFT, EDGE, REFLECT, SYMMETRIC, FLIP };

/* fastload/native/arrays.py has the same structures. */
struct step {
    int32_t kind;
    int32_t width; /* of a value, in bytes: 1 or 8 */
    const void *values;
    int64_t first;
    int64_t second;
};

struct task {
    const uint8_t *source;
    int64_t source_strides[4]; /* sample, channel, row, column */
    const int64_t *indices;    /* NULL: the samples in their order */
    uint8_t *target;
    int64_t target_strides[4]; /* in bytes; either a column's is item, or a channel's is and a column's is all of them */
    int64_t item;              /* bytes of a value of the result: 1, 2 or 4 */
    int64_t channels;
    int64_t sides[2]; /* of the source: height, width */
    int64_t size[2];  /* of the result */
    const uint8_t *fill;  /* [channels]; NULL: each place has to be one of the source */
    const uint8_t *table; /* [channels, 256] of items; NULL: values stay as they are, and item is 1 */
    const struct step *steps[2]; /* of rows, of columns; the first one is done first */
    int64_t num_steps[2];
};

static int64_t value_of(const struct step *step, int64_t sample)
{
    if (!step->values)
        return 0;
    return step->width == 1 ? ((const uint8_t *)step->values)[sample] : ((const int64_t *)step->values)[sample];
}

/* What is added to a place; beyond FARTHEST all numbers lead to the same. */
static int32_t shift_of(const struct step *step, int64_t sample)
{
    int64_t sum;
    if (__builtin_add_overflow(step->first, step->kind == OFFSET ? 0 : value_of(step, sample), &sum))
        sum = step->first < 0 ? -FARTHEST : FARTHEST;
    return (int32_t)(sum < -FARTHEST ? -FARTHEST : sum > FARTHEST ? FARTHEST : sum);
}

static void do_step(const struct step *step, int64_t sample, int32_t *places, int64_t num)
{
    int32_t side = (int32_t)step->second, shift;
    if (step->kind == FLIP) {
        if (value_of(step, sample))
            for (int64_t i = 0; i < num; i++)
                places[i] = places[i] < 0 ? places[i] : places[i] < side ? side - 1 - places[i] : WRONG;
        return;
    }
    shift = shift_of(step, sample);
    if (step->kind == OFFSET || step->kind == SHIFT) {
        for (int64_t i = 0; i < num; i++) {
            int32_t at = places[i] + shift;
            places[i] = places[i] < 0 ? places[i] : at >= 0 && at < side ? at : NOWHERE;
        }
        return;
    }
    for (int64_t i = 0; i < num; i++) {
        int32_t at = places[i] + shift, last = side - 1;
        if (places[i] < 0 || (at >= 0 && at < side)) {
            places[i] = places[i] < 0 ? places[i] : at;
            continue;
        }
        if (step->kind == EDGE)
            at = at < 0 ? 0 : last;
        else if (step->kind == REFLECT)
            at = at < 0 ? -at : 2 * last - at;
        else
            at = at < 0 ? -1 - at : 2 * last + 1 - at;
        places[i] = at >= 0 && at < side ? at : WRONG;
    }
}

/* Find where each row (axis 0) or column (axis 1) of a sample comes from. Returns 1 if some come from nowhere, 0 if
 * none do, WRONG if one is not a place of the source. */
static int find_places(const struct task *task, int axis, int64_t sample, int32_t *places)
{
    int32_t least = 0, most = 0;
    for (int64_t i = 0; i < task->size[axis]; i++)
        places[i] = (int32_t)i;
    for (int64_t step = task->num_steps[axis] - 1; step >= 0; step--)
        do_step(task->steps[axis] + step, sample, places, task->size[axis]);
    for (int64_t i = 0; i < task->size[axis]; i++) {
        least = places[i] < least ? places[i] : least;
        most = places[i] > most ? places[i] : most;
    }
    if (most >= task->sides[axis] || least < NOWHERE || (least < 0 && !task->fill))
        return WRONG;
    return least < 0;
}

/* What is the same for all samples of a call. */
struct plan {
    const struct task *task;
    struct rows rows;
    struct lookup lookup;
    int32_t *places[2];
    uint8_t *strip;
    int64_t strip_rows;
    int in_pixels; /* the channels of a pixel of the result lie together */
};

/* Fill some rows; `at` has a row's length and the channels' distance as a strip or the result has them. */
static void fill_rows(const struct plan *plan, struct place at, int64_t num)
{
    const struct task *task = plan->task;
    int64_t width = task->size[1];
    for (int64_t row = 0; row < num; row++) {
        uint8_t *start = at.start + row * at.row;
        if (plan->in_pixels && row > 0)
            memcpy(start, at.start, (size_t)(width * task->channels));
        else if (plan->in_pixels)
            for (int64_t i = 0; i < width; i++)
                for (int64_t channel = 0; channel < task->channels; channel++)
                    start[i * task->channels + channel] = task->fill[channel];
        else if (row == 0 || at.row != width)
            for (int64_t channel = 0; channel < task->channels; channel++)
                memset(start + channel * at.channel, task->fill[channel],
                       (size_t)(at.row == width ? num * width : width));
    }
}

/* Look up all values of a strip, and write them to rows of the result. */
static void look_up_rows(const struct plan *plan, struct place from, uint8_t *to, int64_t num)
{
    const struct task *task = plan->task;
    int64_t width = task->size[1], item = task->item, row = task->target_strides[2];
    if (plan->in_pixels) {
        int64_t length = width * task->channels;
        int whole = row == length * item;
        for (int64_t i = 0; i < (whole ? 1 : num); i++)
            look_up_pixels(&plan->lookup, from.start + i * length, whole ? num * width : width, to + i * row);
        return;
    }
    for (int64_t channel = 0; channel < task->channels; channel++) {
        const uint8_t *values = from.start + channel * from.channel;
        uint8_t *target = to + channel * task->target_strides[1];
        int whole = row == width * item;
        for (int64_t i = 0; i < (whole ? 1 : num); i++)
            look_up(&plan->lookup, channel, values + i * width, whole ? num * width : width, 1, target + i * row);
    }
}

static int make_sample(const struct plan *plan, int64_t sample, int64_t index)
{
    const struct task *task = plan->task;
    int row_holes = find_places(task, 0, sample, plan->places[0]);
    int col_holes = find_places(task, 1, sample, plan->places[1]);
    if (row_holes == WRONG || col_holes == WRONG)
        return WRONG;
    struct runs runs;
    find_runs(plan->places[1], task->size[1], &runs);
    const uint8_t *image = task->source + index * task->source_strides[0];
    uint8_t *target = task->target + sample * task->target_strides[0];
    for (int64_t top = 0; top < task->size[0]; top += plan->strip_rows) {
        int64_t left = task->size[0] - top, num = left < plan->strip_rows ? left : plan->strip_rows;
        uint8_t *result = target + top * task->target_strides[2];
        struct place at = {result, task->target_strides[1], task->target_strides[2]};
        if (task->table) {
            at.start = plan->strip;
            at.row = task->size[1] * (plan->in_pixels ? task->channels : 1);
            at.channel = plan->in_pixels ? 1 : num * task->size[1];
        }
        if (row_holes || col_holes)
            fill_rows(plan, at, num);
        for (int64_t row = 0; row < num; row++) {
            int64_t from = plan->places[0][top + row];
            struct place to = {at.start + row * at.row, at.channel, at.row};
            if (from >= 0)
                move_row(&plan->rows, &runs, image + from * task->source_strides[2], to);
        }
        if (task->table)
            look_up_rows(plan, at, result, num);
    }
    return 0;
}

static void ask_ahead(const struct task *task, int64_t sample, int64_t num)
{
    if (!task->indices || sample >= num)
        return;
    const uint8_t *image = task->source + task->indices[sample] * task->source_strides[0];
    for (int64_t i = 0; i < AHEAD; i += 64)
        __builtin_prefetch(image + i); /* reads nothing, and may point anywhere */
}

/* Make the samples of a batch.
 *
 * Returns -1 if they are made; -2 if there is no memory; or the first sample of
 * which a place is neither in the source nor filled, with those before it made.
 */
FASTLOAD_EXPORT int64_t fastload_arrays(const struct task *task, int64_t num)
{
    int64_t row_bytes = task->size[1] * task->channels;
    struct plan plan = {.task = task, .strip_rows = task->size[0]};
    plan.in_pixels = task->channels > 1 && task->target_strides[1] == task->item;
    if (task->table && plan.strip_rows * row_bytes > STRIP)
        plan.strip_rows = row_bytes < STRIP ? STRIP / row_bytes : 1;
    size_t strip = task->table ? (size_t)(plan.strip_rows * row_bytes) : 0;
    size_t places = (size_t)(task->size[0] + task->size[1]) * sizeof(int32_t);
    size_t tables = task->table ? lookup_bytes(task->channels) : 0;
    int stream = num * task->size[0] * row_bytes * task->item > STREAMED;
    uint8_t *memory = malloc(tables + places + strip + 64);
    if (!memory)
        return -2;
    uint8_t *aligned = memory + (64 - (uintptr_t)memory % 64) % 64;
    plan.places[0] = (int32_t *)(aligned + tables);
    plan.places[1] = plan.places[0] + task->size[0];
    plan.strip = aligned + tables + places;
    plan.rows = rows_of(task->source_strides, task->channels, plan.in_pixels, plan.places[1]);
    if (task->table)
        plan.lookup = lookup_of(task->table, task->channels, task->item, aligned, stream);
    int64_t failed = -1;
    for (int64_t sample = 0; sample < num && failed < 0; sample++) {
        ask_ahead(task, sample + 2, num);
        if (make_sample(&plan, sample, task->indices ? task->indices[sample] : sample) == WRONG)
            failed = sample;
    }
    if (task->table)
        end_stream(&plan.lookup);
    free(memory);
    return failed;
}
