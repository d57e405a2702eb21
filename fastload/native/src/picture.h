/* From coefficients to pixels: dequantise, inverse transform, upsample, convert colours. Equal to libjpeg-turbo's
 * accurate integer transform (islow) and fancy upsampling, bit for bit.
 *
 *   blocks of coefficients, four side by side ─finish_group─> planes of samples ─picture_rows─> rows of pixels
 *
 * A plane is a ring of rows: samples are made a row of MCUs at a time and used while they are in the cache. Only the
 * MCUs are made that the wanted columns need, with one sample of colour beside them.
 */
#ifndef FASTLOAD_PICTURE_H
#define FASTLOAD_PICTURE_H

#include "jpeg_header.h"
#include "scratch.h"

/* Blocks that are transformed together. Their coefficients are interleaved: coefficient (row, column) of block i is
 * element row * 32 + i * 8 + column. */
#define GROUP 4
#define GROUP_SIZE (GROUP * 64)
/* From one group to the next: behind it is room for what is written and not looked at. */
#define GROUP_STRIDE (GROUP_SIZE + 32)

/* Rows of blocks in a MCU, at most. */
#define MOST_V 2
/* Blocks of all components in a MCU, at most. */
#define MOST_BLOCKS 10

/* Before and behind a row of samples: vector kernels read and write there. */
#define SAMPLE_PADDING 128

/* Which coefficients of a group may be other than zero. */
enum extent {
    LOW, /* the first NUM_LOW of the zigzag order, which lie in the first four rows and columns */
    ALL,
};
#define NUM_LOW 10

/* Where coefficients of the zigzag order lie in a block, row by row. */
extern const uint8_t ZIGZAG_PLACES[64];

/* One component's samples. */
struct plane {
    int h, v;            /* sampling factors */
    int width, height;   /* of the component, in samples */
    int first, last;     /* columns of blocks that are made; the last, too; the first begins a group */
    uint8_t *rows;       /* sample (y, x): rows[(y & ring) * stride + x - 8 * first] */
    size_t stride;
    int ring;            /* rows of the ring, less one */
    int16_t quant[64];   /* in rows; factors above 32767 wrap, as libjpeg's vector code has them */
    int16_t *kept;       /* NULL, or where coefficients go in place of samples: for each row of blocks, and each block
                            of it, 64 in rows. The caller sets it, after it asked for all of the image. */
};

struct picture {
    int width, height, num; /* num: of planes, 1 or 3 */
    int is_rgb;
    int max_h, max_v;
    int needs_context;        /* a row of MCUs looks at samples of the rows above and below */
    int mcu_rows, mcus;       /* in all of the image: rows, and MCUs in each */
    int first_mcu, last_mcu;  /* of each row, that are made; the last, too */
    int first_row, last_row;  /* of MCUs, that are made; the last, too */
    int left, right;          /* columns of pixels that are wanted; not the right one */
    int level;
    struct packer *packer;    /* NULL, or what makes a record of the groups. The caller sets it, as `kept` */
    struct plane plane[3];
    int16_t *groups;  /* [num][MOST_V][2][GROUP_STRIDE]; between groups all zeros */
    uint8_t *line[3]; /* a row of each component at full width */
    uint16_t *sums;
};

/* Prepares for a part of an image: top, left, height, width. Returns enum fastload_status. */
int picture_begin(struct picture *p, struct fastload_scratch *scratch, const struct jpeg_header *header,
                  const int part[4], int level);

/* One of the two groups that collect the blocks of a component, in row v of the MCU. */
static inline int16_t *group_of(const struct picture *p, int component, int v, int which)
{
    return p->groups + ((component * MOST_V + v) * 2 + which) * GROUP_STRIDE;
}

static inline int blocks_across(const struct picture *p, int component)
{
    return p->mcus * p->plane[component].h;
}

static inline int blocks_down(const struct picture *p, int component)
{
    return p->mcu_rows * p->plane[component].v;
}

static inline uint8_t *sample(const struct plane *plane, int y, int x)
{
    return plane->rows + (size_t)(y & plane->ring) * plane->stride + x - 8 * plane->first;
}

/* Makes the samples of a group, and zeros it. `row`, `column`: of its first block, in blocks; the column is a multiple
 * of GROUP. */
void finish_group(const struct picture *p, int component, int row, int column, int16_t *group, enum extent extent);

/* Adds a group to a record, and zeros it: where the picture has a packer, finish_group() is that. */
void pack_group(const struct picture *p, int component, int row, int column, int16_t *group, enum extent extent);

/* To be called when all groups of a row of MCUs are finished. Returns the row of the image up to which rows can now be
 * made: until the next row of MCUs begins. */
int finish_mcu_row(const struct picture *p, int mcu_row);

/* Writes the wanted pixels of row y: 3 bytes each, and up to ROW_PADDING bytes behind them. */
void picture_row(const struct picture *p, int y, uint8_t *out);

/* The inverse transform of a group, which is zeroed. out: 8 rows of GROUP * 8 bytes. */
void idct_plain(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride);
void idct_sse2(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride, enum extent extent);
void idct_neon(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride, enum extent extent);
void idct_avx2(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride, enum extent extent);
void idct_avx512(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride, enum extent extent);

/* libjpeg's factors of chroma, in units of 2**-16, less the whole numbers nearest to them. */
#define RED_CR 26345   /* 1.402 - 1 */
#define BLUE_CB -14942 /* 1.772 - 2 */
#define GREEN_CB -22554
#define GREEN_CR 18734 /* 1 - 0.71414 */

/* Rows of n samples. Kernels write up to SAMPLE_PADDING bytes behind their results. */
struct colors {
    const uint8_t *y, *cb, *cr;
};
/* To pixels of 3 bytes. */
void to_rgb(int level, const struct colors *from, uint8_t *out, int n);
void to_rgb_sse2(const struct colors *from, uint8_t *out, int n);
void to_rgb_avx2(const struct colors *from, uint8_t *out, int n);
void to_rgb_avx512(const struct colors *from, uint8_t *out, int n);
/* Three channels, which may be the same, to pixels of 3 bytes. */
void interleave(int level, const uint8_t *const from[3], uint8_t *out, int n);
void interleave_sse2(const uint8_t *const from[3], uint8_t *out, int n);
void interleave_avx2(const uint8_t *const from[3], uint8_t *out, int n);
void interleave_avx512(const uint8_t *const from[3], uint8_t *out, int n);
/* Twice as many: weights 3 and 1 of a sample and its neighbour; in[-1] and in[n] are read. */
void upsample_h2v1(int level, const uint8_t *in, uint8_t *out, int n);
/* The same across and down; `far`: the row above or below; sums[-1] to sums[n] are written. */
void upsample_h2v2(int level, const uint8_t *near, const uint8_t *far, uint16_t *sums, uint8_t *out, int n);
/* Down alone; bias: 1 where `far` is above, 2 where it is below. */
void upsample_h1v2(int level, const uint8_t *near, const uint8_t *far, int bias, uint8_t *out, int n);

#endif
