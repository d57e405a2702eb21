/* Memory that outlives a call, so that the next image finds it allocated. Owned by the caller, used by one thread at a
 * time. */
#ifndef FASTLOAD_SCRATCH_H
#define FASTLOAD_SCRATCH_H

#include "fastload.h"

struct block {
    void *data;
    size_t size;
};

struct fastload_scratch {
    struct block axes[2];  /* resample.c: places and weights of columns, of rows */
    struct block tables;   /* resample.c: the weights again, as the vector kernels want them */
    struct block rows;     /* resample.c: rows of the final width */
    struct block result;   /* resample.c: a row of the result, and source rows where they had to be copied */
    struct block pixels;   /* jpeg.c, png.c: decoded rows */
    struct block planes;   /* picture.c: samples of each component, and coefficients; png_rows.c: rows */
    struct block entropy;  /* coded.c: coded data without its stuffing */
    struct block restarts; /* coded.c: where restart intervals begin */
    struct block kept;     /* progressive.c: all coefficients of the part of an image; coefficients_pack.c: segments */
    struct block parts;    /* coefficients_pack.c: segments that are being made, and where the others are */
    struct block codes;    /* entropy.c: Huffman tables, kept for files that use the same */
};

/* Makes a block at least `size` bytes long, aligned to 64. What was in it is lost. Returns it, or NULL. */
void *reserve(struct block *block, size_t size);

/* Makes it twice as long, and keeps the first `used` bytes in it. Returns 0 where there is no memory. */
int grow(struct block *block, size_t used);

#endif
