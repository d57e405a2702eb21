/* Changes of an image's colors that Pillow and torchvision make of RGB images: the same bits, in place.
 *
 * In: packed pixels of 8 bits, red, green, blue. Out: the same memory, changed. A block of pixels is taken apart into
 * planes, changed, and put together again.
 *
 * The arithmetic follows Pillow's: tests/native/test_adjust.py compares all 2^24 colors.
 */
#include "fastload.h"

#include <string.h>
#ifdef FASTLOAD_X86
#include <immintrin.h>
#endif

/* Numbers of fastload/native/adjust.py. */
enum change {
    BRIGHTNESS, /* black, and the image: ImageEnhance.Brightness */
    CONTRAST,   /* the mean of its grey, and the image: ImageEnhance.Contrast */
    SATURATION, /* its grey, and the image: ImageEnhance.Color */
    HUE,        /* shifted in HSV by a number of 256ths */
};

#define BLOCK 256
/* By a mask of all ones or of zeros. */
#define CHOSEN(mask, where_set, otherwise) (((mask) & (where_set)) | (~(mask) & (otherwise)))

#define NAME(x) x##_plain
#define TARGET
#include "adjust_blocks.h"
#ifdef FASTLOAD_X86
#define NAME(x) x##_avx2
#define TARGET FASTLOAD_TARGET_AVX2
#include "adjust_blocks.h"
#endif

/* Write the grey of each pixel. */
FASTLOAD_EXPORT void fastload_greys(const uint8_t *pixels, int64_t num, uint8_t *to)
{
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX2) {
        greys_avx2(pixels, num, to);
        return;
    }
#endif
    greys_plain(pixels, num, to);
}

static int64_t sum_of_greys(const uint8_t *pixels, int64_t num)
{
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX2)
        return sum_of_greys_avx2(pixels, num);
#endif
    return sum_of_greys_plain(pixels, num);
}

/* Count the pixels of each level of each channel, in the order of Pillow's histogram(). */
FASTLOAD_EXPORT void fastload_histogram(const uint8_t *pixels, int64_t num, int channels, int64_t *counts)
{
    /* Neighbours are often equal: two tables, so that an addition need not wait for the one before. */
    int64_t other[3][256];
    memset(counts, 0, sizeof(int64_t) * 256 * (size_t)channels);
    memset(other, 0, sizeof other);
    for (int64_t at = 0; at + 1 < num; at += 2, pixels += 2 * channels)
        for (int channel = 0; channel < channels; channel++) {
            counts[channel * 256 + pixels[channel]]++;
            other[channel][pixels[channels + channel]]++;
        }
    for (int channel = 0; channel < channels; channel++) {
        if (num & 1)
            counts[channel * 256 + pixels[channel]]++;
        for (int value = 0; value < 256; value++)
            counts[channel * 256 + value] += other[channel][value];
    }
}

#ifdef FASTLOAD_X86
/* Replace whole vectors of packed values; returns how many were done. */
FASTLOAD_TARGET_AVX512 static int64_t map_levels_avx512(uint8_t *values, int64_t num, int channels,
                                                        const uint8_t *table)
{
    /* Bit i: whether value i of three vectors in turn is the first channel's, from which the others follow. */
    static const uint64_t FIRST[3] = {0x9249249249249249u, 0x4924924924924924u, 0x2492492492492492u};
    __m512i parts[3][4];
    for (int channel = 0; channel < channels; channel++)
        for (int part = 0; part < 4; part++)
            parts[channel][part] = _mm512_loadu_si512(table + 256 * channel + 64 * part);
    int64_t done = 0;
    for (int turn = 0; done + 64 <= num; done += 64, turn = turn == 2 ? 0 : turn + 1) {
        __m512i at = _mm512_loadu_si512(values + done), found = at;
        __mmask64 high = _mm512_movepi8_mask(at);
        for (int channel = 0; channel < channels; channel++) {
            __m512i low_half = _mm512_permutex2var_epi8(parts[channel][0], at, parts[channel][1]);
            __m512i high_half = _mm512_permutex2var_epi8(parts[channel][2], at, parts[channel][3]);
            __mmask64 own = channels == 1 ? ~0ull : FIRST[(turn - channel + 3) % 3];
            found = _mm512_mask_mov_epi8(found, own, _mm512_mask_mov_epi8(low_half, high, high_half));
        }
        _mm512_storeu_si512(values + done, found);
    }
    return done;
}
#endif

/* Replace each value by its channel's entry of the table. */
FASTLOAD_EXPORT void fastload_map_levels(uint8_t *values, int64_t num_pixels, int channels, const uint8_t *table)
{
    int64_t num = num_pixels * channels, done = 0;
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX512)
        done = map_levels_avx512(values, num, channels, table);
#endif
    const uint8_t *own[3];
    for (int i = 0; i < 3; i++)
        own[i] = table + 256 * ((done + i) % channels);
    for (; done + 3 <= num; done += 3) {
        values[done] = own[0][values[done]];
        values[done + 1] = own[1][values[done + 1]];
        values[done + 2] = own[2][values[done + 2]];
    }
    for (int i = 0; done < num; done++, i++)
        values[done] = own[i][values[done]];
}

/* Change an image of `num` pixels. `part`: how far from the other image to this one; `steps`: of HUE. */
FASTLOAD_EXPORT void fastload_adjust(int change, uint8_t *pixels, int64_t num, float part, int steps)
{
    if (change == BRIGHTNESS || change == CONTRAST) {
        uint8_t table[3][256];
        /* The mean as int(sum / number + 0.5) in double precision. */
        int from = 0;
        if (change == CONTRAST && num)
            from = (int)((double)sum_of_greys(pixels, num) / (double)num + 0.5);
        for (int value = 0; value < 256; value++)
            table[0][value] = table[1][value] = table[2][value] = mixed_plain(from, value, part);
        fastload_map_levels(pixels, num, 3, table[0]);
        return;
    }
#ifdef FASTLOAD_X86
    if (fastload_level >= FASTLOAD_AVX2) {
        change_blocks_avx2(change, pixels, num, part, steps);
        return;
    }
#endif
    change_blocks_plain(change, pixels, num, part, steps);
}

/* Sharpen or smooth an image as ImageEnhance.Sharpness does, into other memory. Returns DONE, or BAD_ARGUMENT for an image
 * of fewer than three rows or columns. */
FASTLOAD_EXPORT int fastload_sharpen(const uint8_t *pixels, int height, int width, uint8_t *to, float part)
{
    if (height < 3 || width < 3)
        return FASTLOAD_BAD_ARGUMENT;
    const size_t row_size = 3 * (size_t)width;
    memcpy(to, pixels, row_size);
    for (int row = 1; row < height - 1; row++) {
        const uint8_t *from = pixels + row * row_size;
        uint8_t *out = to + row * row_size;
        const int num = 3 * (width - 2);
        memcpy(out, from, 3);
        memcpy(out + 3 + num, from + 3 + num, 3);
#ifdef FASTLOAD_X86
        if (fastload_level >= FASTLOAD_AVX2) {
            sharpen_row_avx2(from + 3 - row_size, from + 3, from + 3 + row_size, out + 3, num, part);
            continue;
        }
#endif
        sharpen_row_plain(from + 3 - row_size, from + 3, from + 3 + row_size, out + 3, num, part);
    }
    memcpy(to + (height - 1) * row_size, pixels + (height - 1) * row_size, row_size);
    return FASTLOAD_DONE;
}
