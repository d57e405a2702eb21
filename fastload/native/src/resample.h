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

/* All antialiased, as Pillow's; the last two as torch's interpolate of 8-bit tensors, whose weights have 16 bits. */
enum fastload_filter {
    FASTLOAD_BILINEAR = 0,
    FASTLOAD_BICUBIC = 1,
    FASTLOAD_BOX = 2,
    FASTLOAD_HAMMING = 3,
    FASTLOAD_LANCZOS = 4,
    FASTLOAD_TENSOR_BILINEAR = 5,
    FASTLOAD_TENSOR_BICUBIC = 6,
    FASTLOAD_NUM_FILTERS
};

enum fastload_flip { FASTLOAD_LEFT_RIGHT = 1, FASTLOAD_UPSIDE_DOWN = 2 };

/* Which axis is resized first. Rounding in between makes the two differ. */
enum fastload_order {
    FASTLOAD_COLUMNS_FIRST = 0,   /* always: Pillow before 12.2 */
    FASTLOAD_TALL_ROWS_FIRST = 1, /* the rows where more than twice as many of them go as columns: Pillow 13 */
    FASTLOAD_STRIPS_ROWS_FIRST = 2, /* the rows where they become fewer, if 100 columns are less: Pillow 12.2 */
};

/* Where results go. Strides are in bytes. Callers fill it in by these offsets: fastload/native/rows.py. */
struct target {
    uint8_t *data;
    int64_t row, column, channel;
    const void *table; /* [3][256] elements: what each level of each channel becomes; NULL: itself, of one byte */
    int32_t element;   /* bytes of an element: 1, 2 or 4 */
    int32_t channels;  /* 3; 1: the first alone; 4: and a byte of 255 behind each pixel, with column 4 and channel 1 */
};

/* What is made of an image, in this order: a part of it is taken, resized, a window of that is kept, and flipped. */
struct fastload_request {
    struct target target; /* of the window */
    float source[4];      /* Pillow's box= of a resize: x0, y0, x1, y1 of the part that becomes the result, inside of
                             the box; filters also look at the box's samples around it */
    int32_t box[4];       /* top, left, height, width; inside the image */
    int32_t size[2];      /* height, width of all of the result, up to FASTLOAD_MAX_SIDE */
    int32_t window[4];    /* top, left, height, width; inside the result */
    int32_t filter, order;
    int32_t flips;        /* a sum of enum fastload_flip */
};

/* One axis of a resize: from the part between begin and end of `in` samples to `out` results, of which `num` are
 * wanted, from `window` on. */
struct stretch {
    float begin, end;
    int in, out, window, num;
};

/* How the wanted results are made: result i is the sum over t < count[i] of weight[i * taps + t] times sample
 * first + start[i] + t. Of the samples only `in` are needed, from `first` on. */
struct axis {
    int first, in, out;
    int taps; /* a multiple of 4; weights behind count are 0. 0: results are the samples, and there are no weights */
    int32_t *start, *count, *weight;
};

/* Whether a filter is one of torch's, which resizes columns first. */
int is_tensor_filter(int filter);
/* Whether each result is just a sample. */
int is_copy(const struct stretch *stretch);
void plan_copy(struct axis *axis, const struct stretch *stretch);
/* `reversed`: the last result comes first. Returns enum fastload_status. */
int plan_axis(struct axis *axis, struct block *memory, const struct stretch *stretch, int filter, int reversed);

struct resizer {
    int level;
    struct axis columns, rows;
    int rows_first;
    int copies_columns; /* they are not resized, nor flipped */
    int wide_columns;   /* the AVX-512 kernel cannot reach all sources of a group */
    int reach;          /* bytes a group's sources span, for that kernel */
    void *column_tables, *row_tables;
    uint8_t *kept; /* rows, as they come: of the final width, or as wide as the source where rows are first */
    size_t kept_stride;
    int kept_width;
    uint8_t *middle; /* one row of the final height, where rows are first */
    uint8_t *line;   /* one row of the result */
    int come, gone; /* source rows seen, result rows written */
    struct target target;
};

/* FASTLOAD_DONE, or FASTLOAD_BAD_ARGUMENT where a part lies outside of its whole, or a number means nothing. */
int check_request(const struct fastload_request *request, int image_height, int image_width);

/* Prepares for the rows that a request needs: rows.in of them from rows.first of its box on, and of each columns.in
 * pixels from columns.first on. Returns enum fastload_status. */
int resizer_begin(struct resizer *r, struct fastload_scratch *scratch, const struct fastload_request *request);

/* Bytes from one row of so many pixels to the next. */
static inline size_t padded(int width)
{
    return ((size_t)3 * width + ROW_PADDING + 63) / 64 * 64;
}

/* Takes the next `num` source rows: 3 * columns.in bytes each, ROW_PADDING bytes behind which may be read. Several at
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
void columns_neon(const struct resizer *r, const struct strip *strip);
void rows_neon(const struct resizer *r, int y, uint8_t *out);
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
