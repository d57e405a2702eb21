/* Moving the bytes of a row: forwards, backwards, or each from a place of its own; from pixels to planes and back. */
#ifndef FASTLOAD_ARRAYS_ROWS_H
#define FASTLOAD_ARRAYS_ROWS_H

#include "fastload.h"

#include <string.h>

#ifdef FASTLOAD_X86
#include <immintrin.h>
#endif

/* So many runs are worth more than a look at each place. */
#define MOST_RUNS 8

/* Some columns of the result that come from neighbours. */
struct run {
    int64_t begin;  /* in the result */
    int64_t length;
    int64_t source; /* the first one's place */
    int64_t step;   /* 1 or -1; 0: each as places say */
};

struct runs {
    struct run run[MOST_RUNS];
    int64_t num;
};

/* Where a row lies. */
struct place {
    uint8_t *start;
    int64_t channel; /* to the next channel, in bytes */
    int64_t row;     /* to the next row */
};

/* From planes to planes, from pixels of three channels to planes, from pixels to pixels, and all else. */
enum way { PLANES, SPLIT, PIXELS, BYTES };

typedef void copy_function(const uint8_t *from, int64_t num, uint8_t *to);
typedef void split_function(const uint8_t *from, int64_t num, uint8_t *to, int64_t channel);

struct rows {
    int64_t channels;
    int64_t from_channel; /* strides of the source */
    int64_t from_col;
    int64_t to_col; /* from a value of the result to the next one of its channel, in places */
    enum way way;
    const int32_t *places; /* of columns */
    copy_function *copy;
    copy_function *turn;            /* writes in the reverse order */
    split_function *split;          /* from pixels of three channels to planes */
    split_function *split_and_turn; /* likewise, pixels in the reverse order */
};

/* Divide the columns of a result into runs; what comes from nowhere is in none. */
static void find_runs(const int32_t *places, int64_t num, struct runs *runs)
{
    runs->num = 0;
    for (int64_t begin = 0, end; begin < num; begin = end) {
        end = begin + 1;
        if (places[begin] < 0)
            continue;
        int64_t step = end < num && places[end] == places[begin] - 1 && places[end] >= 0 ? -1 : 1;
        while (end < num && places[end] >= 0 && places[end] == places[end - 1] + step)
            end++;
        if (runs->num == MOST_RUNS) {
            runs->run[0] = (struct run){0, num, 0, 0};
            runs->num = 1;
            return;
        }
        runs->run[runs->num++] = (struct run){begin, end - begin, places[begin], step};
    }
}

static void copy_plain(const uint8_t *from, int64_t num, uint8_t *to)
{
    memcpy(to, from, (size_t)num);
}

static void turn_plain(const uint8_t *from, int64_t num, uint8_t *to)
{
    for (int64_t i = 0; i < num; i++)
        to[i] = from[num - 1 - i];
}

static void split_plain(const uint8_t *from, int64_t num, uint8_t *to, int64_t channel)
{
    for (int64_t i = 0; i < num; i++)
        for (int c = 0; c < 3; c++)
            to[c * channel + i] = from[3 * i + c];
}

static void split_and_turn_plain(const uint8_t *from, int64_t num, uint8_t *to, int64_t channel)
{
    for (int64_t i = 0; i < num; i++)
        for (int c = 0; c < 3; c++)
            to[c * channel + i] = from[3 * (num - 1 - i) + c];
}

#ifdef FASTLOAD_X86
/* What is shorter than a register goes the plain way; else the last register overlaps the one before it. */
FASTLOAD_TARGET_AVX2
static void copy_avx2(const uint8_t *from, int64_t num, uint8_t *to)
{
    if (num < 16 || num > 256) {
        memcpy(to, from, (size_t)num);
        return;
    }
    for (int64_t i = 0; i + 16 < num; i += 16)
        _mm_storeu_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    _mm_storeu_si128((__m128i *)(to + num - 16), _mm_loadu_si128((const __m128i *)(from + num - 16)));
}

FASTLOAD_TARGET_AVX2
static void turn_avx2(const uint8_t *from, int64_t num, uint8_t *to)
{
    const __m128i backwards = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (num < 16) {
        turn_plain(from, num, to);
        return;
    }
    for (int64_t i = 0;; i = i + 32 <= num ? i + 16 : num - 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(from + num - 16 - i));
        _mm_storeu_si128((__m128i *)(to + i), _mm_shuffle_epi8(bytes, backwards));
        if (i == num - 16)
            return;
    }
}

/* Of 16 pixels of three channels, the bytes of one channel stand in these places of the three registers; -1: in
 * another register. */
#define X (-1)
static const int8_t PIXEL_BYTES[2][3][3][16] = {
    {
        {{0, 3, 6, 9, 12, 15, X, X, X, X, X, X, X, X, X, X},
         {X, X, X, X, X, X, 2, 5, 8, 11, 14, X, X, X, X, X},
         {X, X, X, X, X, X, X, X, X, X, X, 1, 4, 7, 10, 13}},
        {{1, 4, 7, 10, 13, X, X, X, X, X, X, X, X, X, X, X},
         {X, X, X, X, X, 0, 3, 6, 9, 12, 15, X, X, X, X, X},
         {X, X, X, X, X, X, X, X, X, X, X, 2, 5, 8, 11, 14}},
        {{2, 5, 8, 11, 14, X, X, X, X, X, X, X, X, X, X, X},
         {X, X, X, X, X, 1, 4, 7, 10, 13, X, X, X, X, X, X},
         {X, X, X, X, X, X, X, X, X, X, 0, 3, 6, 9, 12, 15}},
    },
    {
        {{X, X, X, X, X, X, X, X, X, X, 15, 12, 9, 6, 3, 0},
         {X, X, X, X, X, 14, 11, 8, 5, 2, X, X, X, X, X, X},
         {13, 10, 7, 4, 1, X, X, X, X, X, X, X, X, X, X, X}},
        {{X, X, X, X, X, X, X, X, X, X, X, 13, 10, 7, 4, 1},
         {X, X, X, X, X, 15, 12, 9, 6, 3, 0, X, X, X, X, X},
         {14, 11, 8, 5, 2, X, X, X, X, X, X, X, X, X, X, X}},
        {{X, X, X, X, X, X, X, X, X, X, X, 14, 11, 8, 5, 2},
         {X, X, X, X, X, X, 13, 10, 7, 4, 1, X, X, X, X, X},
         {15, 12, 9, 6, 3, 0, X, X, X, X, X, X, X, X, X, X}},
    },
};
#undef X

FASTLOAD_TARGET_AVX2
static inline void split_16(const uint8_t *from, uint8_t *to, int64_t channel, const int8_t bytes[3][3][16])
{
    __m128i pixels[3];
    for (int part = 0; part < 3; part++)
        pixels[part] = _mm_loadu_si128((const __m128i *)(from + 16 * part));
    for (int c = 0; c < 3; c++) {
        __m128i found = _mm_shuffle_epi8(pixels[0], _mm_loadu_si128((const __m128i *)bytes[c][0]));
        for (int part = 1; part < 3; part++)
            found = _mm_or_si128(
                found, _mm_shuffle_epi8(pixels[part], _mm_loadu_si128((const __m128i *)bytes[c][part])));
        _mm_storeu_si128((__m128i *)(to + c * channel), found);
    }
}

FASTLOAD_TARGET_AVX2
static void split_avx2(const uint8_t *from, int64_t num, uint8_t *to, int64_t channel)
{
    if (num < 16) {
        split_plain(from, num, to, channel);
        return;
    }
    for (int64_t i = 0; i + 16 < num; i += 16)
        split_16(from + 3 * i, to + i, channel, PIXEL_BYTES[0]);
    split_16(from + 3 * (num - 16), to + num - 16, channel, PIXEL_BYTES[0]);
}

FASTLOAD_TARGET_AVX2
static void split_and_turn_avx2(const uint8_t *from, int64_t num, uint8_t *to, int64_t channel)
{
    if (num < 16) {
        split_and_turn_plain(from, num, to, channel);
        return;
    }
    for (int64_t i = 0; i + 16 < num; i += 16)
        split_16(from + 3 * (num - 16 - i), to + i, channel, PIXEL_BYTES[1]);
    split_16(from, to + num - 16, channel, PIXEL_BYTES[1]);
}
#endif

/* Return how rows are moved.
 *
 * strides: of the source: sample, channel, row, column. to_pixels: the channels of a pixel of the result lie together.
 * places: where the columns come from, for each sample anew.
 */
static struct rows rows_of(const int64_t strides[4], int64_t channels, int to_pixels, const int32_t *places)
{
    struct rows rows = {channels,   strides[1], strides[3],  to_pixels ? channels : 1, BYTES, places,
                        copy_plain, turn_plain, split_plain, split_and_turn_plain};
    int from_pixels = strides[1] == 1 && strides[3] == channels;
    if (!to_pixels && strides[3] == 1)
        rows.way = PLANES;
    else if (!to_pixels && from_pixels && channels == 3)
        rows.way = SPLIT;
    else if (to_pixels && from_pixels)
        rows.way = PIXELS;
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX2) {
        rows.copy = copy_avx2;
        rows.turn = turn_avx2;
        rows.split = split_avx2;
        rows.split_and_turn = split_and_turn_avx2;
    }
#endif
    return rows;
}

/* Move a run by one byte after the other: whatever has no better way. */
static void move_bytes(const struct rows *rows, const struct run *run, const uint8_t *from, struct place to)
{
    for (int64_t channel = 0; channel < rows->channels; channel++) {
        const uint8_t *source = from + channel * rows->from_channel;
        uint8_t *target = to.start + channel * to.channel;
        for (int64_t i = 0; i < run->length; i++) {
            int64_t place = run->step ? run->source + i * run->step : rows->places[run->begin + i];
            if (place >= 0)
                target[(run->begin + i) * rows->to_col] = source[place * rows->from_col];
        }
    }
}

/* Move a run from pixels to pixels of `size` bytes: backwards, or each from a place of its own. */
static inline __attribute__((always_inline)) void move_sized(const struct rows *rows, const struct run *run,
                                                             const uint8_t *from, uint8_t *to, int64_t size)
{
    const int32_t *places = rows->places + run->begin;
    to += run->begin * size;
    if (run->step < 0)
        for (int64_t i = 0; i < run->length; i++)
            memcpy(to + i * size, from + (run->source - i) * size, (size_t)size);
    else
        for (int64_t i = 0; i < run->length; i++)
            if (places[i] >= 0)
                memcpy(to + i * size, from + places[i] * size, (size_t)size);
}

static void move_pixels(const struct rows *rows, const struct run *run, const uint8_t *from, uint8_t *to)
{
    if (rows->channels == 4) /* and, like 2, the bytes of a value */
        move_sized(rows, run, from, to, 4);
    else if (rows->channels == 2)
        move_sized(rows, run, from, to, 2);
    else
        move_sized(rows, run, from, to, rows->channels);
}

/* Move the runs of a row. `from` is the source's row, in its first channel. */
static inline void move_row(const struct rows *rows, const struct runs *runs, const uint8_t *from, struct place to)
{
    for (int i = 0; i < runs->num; i++) {
        const struct run *run = runs->run + i;
        int64_t num = run->length, channels = rows->channels;
        int64_t lowest = run->step < 0 ? run->source - num + 1 : run->source;
        copy_function *move = run->step < 0 ? rows->turn : rows->copy;
        if (rows->way == PIXELS && run->step <= 0)
            move_pixels(rows, run, from, to.start);
        else if (run->step == 0 || rows->way == BYTES)
            move_bytes(rows, run, from, to);
        else if (rows->way == SPLIT)
            (run->step < 0 ? rows->split_and_turn : rows->split)(from + 3 * lowest, num, to.start + run->begin,
                                                                 to.channel);
        else if (rows->way == PLANES)
            for (int64_t channel = 0; channel < channels; channel++)
                move(from + channel * rows->from_channel + lowest, num, to.start + channel * to.channel + run->begin);
        else
            move(from + channels * lowest, channels * num, to.start + channels * run->begin);
    }
}

#endif
