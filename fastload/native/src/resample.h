/* Antialiased resizing of 8-bit RGB rows, equal to Pillow's bit for bit.
 *
 * In: the rows of a source image, from top to bottom, as many at a time as there are. Out: the rows of the result, each
 * as soon as the last source row that it needs has come, written where struct target says.
 *
 * Each result is a weighted sum of 8-bit values with weights in units of 2**-22, first along the columns, rounded and
 * clipped to 8 bits, then along the rows; or the other way round, see enum fastload_order. Sums of integers do not
 * depend on their order, so every kernel here computes the same bits; sums of parts of weights may wrap around, the
 * whole sum does not.
 */
#ifndef FASTLOAD_RESAMPLE_H
#define FASTLOAD_RESAMPLE_H

#include "scratch.h"

#define WEIGHT_BITS 22

/* Vector kernels read this far behind a row's end, and write this far. */
#define ROW_PADDING 256

/* How many rows a caller best has ready before it pushes them. */
#define ROWS_AT_ONCE 16

enum fastload_filter { FASTLOAD_BILINEAR = 0, FASTLOAD_BICUBIC = 1 };

/* Which axis is resized first. Rounding in between makes the two differ. */
enum fastload_order {
    FASTLOAD_COLUMNS_FIRST = 0,   /* always: Pillow before 13 */
    FASTLOAD_TALL_ROWS_FIRST = 1, /* the rows where more than twice as many of them go as columns: Pillow 13 */
};

/* One axis: result i is the sum over t < count[i] of weight[i * taps + t] times source start[i] + t. */
struct axis {
    int in, out;
    int taps; /* a multiple of 4; weights behind count are 0 */
    int32_t *start, *count, *weight;
};

/* Where results go. Strides are in bytes. */
struct target {
    uint8_t *data;
    int64_t row, column, channel;
    int element;       /* bytes of an element: 1, 2 or 4 */
    const void *table; /* [3][256] elements: what each level of each channel becomes; NULL: itself, of one byte */
};

struct resizer {
    int level;
    struct axis columns, rows;
    int rows_first;
    int copies_columns; /* the width stays, and nothing is flipped */
    int wide_columns;   /* the AVX-512 kernel cannot reach all sources of a group */
    int reach;          /* bytes a group's sources span, for that kernel */
    void *column_tables, *row_tables;
    uint8_t *kept; /* rows, as they come: of the final width, or of the source's where rows are first */
    size_t kept_stride;
    int kept_width;
    uint8_t *middle; /* one row of the final height, where rows are first */
    uint8_t *line;   /* one row of the result */
    int come, gone; /* source rows seen, result rows written */
    struct target target;
};

/* FASTLOAD_DONE, or FASTLOAD_BAD_ARGUMENT where a box lies outside of its image, or a size, filter, order or element
 * is none. */
int check_request(int image_height, int image_width, const int32_t box[4], int height, int width, int filter,
                  int order, const struct target *target);

/* Prepares for a source of in_height x in_width and a result of height x width. Returns enum fastload_status. */
int resizer_begin(struct resizer *r, struct fastload_scratch *scratch, int in_height, int in_width, int height,
                  int width, int filter, int order, int flip, int level, const struct target *target);

/* Takes the next `num` source rows: 3 * in_width bytes each, ROW_PADDING bytes behind which may be read. Several at
 * once are faster: weights are loaded once for all of them, and rows just written are still on their way to memory. */
void resizer_push(struct resizer *r, const uint8_t *rows, size_t stride, int num);

/* Kernels. That for columns takes `num` rows, the other makes one. */
struct strip {
    const uint8_t *in;
    size_t in_stride;
    uint8_t *out;
    size_t out_stride;
    int num;
};
void columns_avx2(const struct resizer *r, const struct strip *strip);
void columns_avx512(const struct resizer *r, const struct strip *strip);
void rows_avx2(const struct resizer *r, int y, uint8_t *out);
void rows_avx512(const struct resizer *r, int y, uint8_t *out);
/* Bytes of tables that the kernels of a level want, and filling them in. */
size_t tables_avx2(const struct axis *columns, const struct axis *rows);
size_t tables_avx512(const struct axis *columns, const struct axis *rows);
void fill_tables_avx2(struct resizer *r, void *tables);
void fill_tables_avx512(struct resizer *r, void *tables);

/* Writes a finished row of the result to its target. */
void store_row(const struct target *target, int level, int y, const uint8_t *line, int width);

#endif
