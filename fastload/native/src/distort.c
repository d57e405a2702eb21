/* Changes of colors that torchvision makes of tensors of 8 bits: the same bits, in other memory.
 *
 * In: red, green and blue levels, strided. Out: the same without gaps, changed. A block of pixels is taken apart into
 * planes, changed, and put together again.
 *
 * The arithmetic follows torch's operators, one rounding to single precision for each. Where a product is added,
 * torch rounds once (fused) or twice, by the instructions that it uses: the caller says which.
 * tests/native/test_distort.py compares all 2^24 colors.
 */
#include "fastload.h"

#include <math.h>
#include <string.h>

/* Numbers of fastload/native/distort.py. */
enum change {
    SATURATION, /* adjust_saturation: its grey, and the image */
    HUE,        /* adjust_hue: turned in HSV */
    HUE_1,      /* adjust_hue of version 1 */
};

#define BLOCK 256
/* By a mask of all ones or of zeros. */
#define CHOSEN(mask, where_set, otherwise) (((mask) & (where_set)) | (~(mask) & (otherwise)))

struct planes {
    uint8_t of[3][BLOCK]; /* red, green, blue */
};

/* Pixels with gaps between the rows, or none: planes (column 1), or side by side (column 3, channel 1). */
struct place {
    int64_t row, column, channel; /* strides */
};

/* What a change is given; what it does not use is 0. */
struct numbers {
    float part, rest; /* of SATURATION: how much of the image, and of its grey */
    float turn;       /* of HUE and HUE_1 */
};

#define NAME(x) x##_plain
#define TARGET
#include "distort_blocks.h"
#ifdef FASTLOAD_X86
#define NAME(x) x##_avx2
#define TARGET FASTLOAD_TARGET_AVX2
#include "distort_blocks.h"
#define NAME(x) x##_avx512
#define TARGET FASTLOAD_TARGET_AVX512
#include "distort_blocks.h"
#endif

/* Write the grey of each pixel, rounded down, row by row. Python checks that strides are those of one of the two
 * arrangements. */
FASTLOAD_EXPORT void fastload_distort_greys(const uint8_t *from, const int64_t *strides, int64_t height, int64_t width,
                                            float *to, int fused)
{
    struct place place = {strides[0], strides[1], strides[2]};
    if (place.row == width * place.column) {
        width *= height;
        height = 1;
    }
    for (int64_t y = 0; y < height; y++, from += place.row, to += width) {
#ifdef FASTLOAD_X86
        if (fastload_level >= FASTLOAD_AVX512)
            row_of_greys_avx512(from, &place, width, to, fused);
        else if (fastload_level >= FASTLOAD_AVX2)
            row_of_greys_avx2(from, &place, width, to, fused);
        else
#endif
            row_of_greys_plain(from, &place, width, to, fused);
    }
}

/* Change an image.
 *
 * from_strides, to_strides: of rows, columns and channels. */
FASTLOAD_EXPORT void fastload_distort(int change, const uint8_t *from, const int64_t *from_strides, uint8_t *to,
                                      const int64_t *to_strides, int64_t height, int64_t width, const float *given,
                                      int fused)
{
    struct place source = {from_strides[0], from_strides[1], from_strides[2]};
    struct place target = {to_strides[0], to_strides[1], to_strides[2]};
    struct numbers numbers = {given[0], given[1], given[2]};
    if (source.row == width * source.column && target.row == width * target.column) {
        width *= height;
        height = 1;
    }
    for (int64_t y = 0; y < height; y++, from += source.row, to += target.row) {
#ifdef FASTLOAD_X86
        if (fastload_level >= FASTLOAD_AVX512)
            change_row_avx512(change, from, &source, to, &target, width, &numbers, fused);
        else if (fastload_level >= FASTLOAD_AVX2)
            change_row_avx2(change, from, &source, to, &target, width, &numbers, fused);
        else
#endif
            change_row_plain(change, from, &source, to, &target, width, &numbers, fused);
    }
}
