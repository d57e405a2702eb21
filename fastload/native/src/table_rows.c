/* Rows of a column of numbers, or of lists of numbers, that lies in chunks: fastload/tables/arrow.py says which.
 *
 *     rows ─> chunk ─offsets─> places of the values ─> one row behind the other
 *
 * In: addresses of Arrow's buffers. Out: the values, as they are, or integers as int64. What the buffers say is checked:
 * no value outside of them is read.
 */
#include "fastload.h"

#include <string.h>

#define NO_SUCH_ROW (-1)
#define DAMAGED (-2)
#define AHEAD 2             /* rows */
#define MOST_EXPECTED 4096  /* bytes of a row */
#define LOOK (-3) /* and below: the number of a chunk, taken from it */

/* fastload/native/table_rows.py has the same structures; all members are of 64 bits. */
struct chunk {
    const uint8_t *values; /* NULL: nobody has looked at it yet */
    int64_t num_values;
    const void *offsets; /* of lists; NULL: each row has as many values as the column says */
    int64_t first;       /* row of the chunk's first one in its values */
};

struct column {
    const int64_t *ends; /* row behind the last one of each chunk */
    const struct chunk *chunks;
    int64_t num_chunks;
    int64_t size;         /* values of a row, where there are no offsets */
    int64_t offset_width; /* bytes of an offset: 4 or 8 */
    int64_t item;         /* bytes of a value: 1, 2, 4 or 8 */
    int64_t kind;         /* what is made of values: 0 copies, int64 of 1 signed, 2 unsigned integers */
};

struct place {
    const uint8_t *values;
    int64_t length; /* in values */
};

static int64_t chunk_of(const struct column *column, int64_t row)
{
    int64_t low = 0, high = column->num_chunks;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (column->ends[middle] <= row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t offset(const void *offsets, int64_t width, int64_t row)
{
    int32_t narrow;
    int64_t wide;
    if (width == 8) {
        memcpy(&wide, (const uint8_t *)offsets + 8 * row, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const uint8_t *)offsets + 4 * row, sizeof narrow);
    return narrow;
}

/* Find where rows lie. found: how many values they have in all, and the fewest and the most of a row. Returns 0,
 * NO_SUCH_ROW, DAMAGED, or LOOK - the number of a chunk that is to be looked at. */
FASTLOAD_EXPORT int64_t fastload_table_find(const struct column *column, const int64_t *rows, int64_t num_rows,
                                            struct place *places, int64_t found[3])
{
    int64_t total = 0, fewest = INT64_MAX, most = 0;
    for (int64_t i = 0; i < num_rows; i++) {
        int64_t row = rows[i], number = row < 0 ? column->num_chunks : chunk_of(column, row), start, stop;
        const struct chunk *chunk = column->chunks + number;
        if (number == column->num_chunks)
            return NO_SUCH_ROW;
        if (!chunk->values)
            return LOOK - number;
        row -= number ? column->ends[number - 1] : 0;
        if (chunk->offsets) {
            start = offset(chunk->offsets, column->offset_width, row);
            stop = offset(chunk->offsets, column->offset_width, row + 1);
        } else {
            start = (chunk->first + row) * column->size;
            stop = start + column->size;
        }
        if (start < 0 || stop < start || stop > chunk->num_values)
            return DAMAGED;
        places[i].values = chunk->values + start * column->item;
        places[i].length = stop - start;
        total += stop - start;
        fewest = stop - start < fewest ? stop - start : fewest;
        most = stop - start > most ? stop - start : most;
    }
    found[0] = total;
    found[1] = fewest;
    found[2] = most;
    return 0;
}

/* Values may lie anywhere; compilers make vectors of these loops. */
#define WIDEN(name, type)                                                                                              \
    static void name(const uint8_t *values, int64_t length, int64_t *target)                                           \
    {                                                                                                                  \
        for (int64_t i = 0; i < length; i++) {                                                                         \
            type value;                                                                                                \
            memcpy(&value, values + i * (int64_t)sizeof value, sizeof value);                                          \
            target[i] = (int64_t)value;                                                                                \
        }                                                                                                              \
    }

WIDEN(from_int8, int8_t)
WIDEN(from_int16, int16_t)
WIDEN(from_int32, int32_t)
WIDEN(from_uint8, uint8_t)
WIDEN(from_uint16, uint16_t)
WIDEN(from_uint32, uint32_t)

/* Ask for the memory of a row that is copied soon: rows lie anywhere, and the processor expects only those behind. */
static void expect(const struct place *place, int64_t item)
{
    int64_t size = place->length * item;
    for (int64_t i = 0; i < size && i < MOST_EXPECTED; i += 64)
        __builtin_prefetch(place->values + i);
}

/* Write the values of places that fastload_table_find has found, one behind the other. */
FASTLOAD_EXPORT void fastload_table_copy(const struct column *column, const struct place *places, int64_t num_rows,
                                         uint8_t *target)
{
    int64_t item = column->item, width = column->kind && item < 8 ? 8 : item;
    for (int64_t i = 0; i < num_rows; i++) {
        const uint8_t *values = places[i].values;
        int64_t length = places[i].length, *wide = (int64_t *)target;
        if (i + AHEAD < num_rows)
            expect(places + i + AHEAD, item);
        if (width == item)
            memcpy(target, values, (size_t)(length * item));
        else if (column->kind == 1)
            (item == 1 ? from_int8 : item == 2 ? from_int16 : from_int32)(values, length, wide);
        else
            (item == 1 ? from_uint8 : item == 2 ? from_uint16 : from_uint32)(values, length, wide);
        target += length * width;
    }
}
