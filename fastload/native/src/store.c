/* A finished row of 8-bit RGB to where and how the caller wants it. See struct target in resample.h. */
#include "resample.h"

#include <string.h>

#define STORE(TYPE, LOOK_UP)                                                                                           \
    do {                                                                                                               \
        for (int c = 0; c < target->channels; c++) {                                                                   \
            uint8_t *to = row + c * target->channel;                                                                   \
            const TYPE *table = (const TYPE *)target->table + 256 * c;                                                 \
            const uint8_t *from = line + c;                                                                            \
            (void)table;                                                                                               \
            if (target->column == (int64_t)sizeof(TYPE))                                                               \
                for (int x = 0; x < width; x++)                                                                        \
                    ((TYPE *)(void *)to)[x] = LOOK_UP(from[3 * x]);                                                    \
            else                                                                                                       \
                for (int x = 0; x < width; x++, to += target->column)                                                  \
                    *(TYPE *)(void *)to = LOOK_UP(from[3 * x]);                                                        \
        }                                                                                                              \
    } while (0)
#define LEVEL(value) (value)
#define FROM_TABLE(value) table[value]

#ifdef FASTLOAD_X86
#include <immintrin.h>

/* Pixels of three bytes to as many planes as there are channels, 16 at a time. Returns how many pixels it took. */
FASTLOAD_TARGET_AVX2 static int planes_avx2(const struct target *target, uint8_t *row, const uint8_t *line, int width)
{
    /* Which byte of each third of 48 bytes goes where in each plane; -1: it is in another third. */
    int8_t order[3][3][16];
    memset(order, -1, sizeof order);
    for (int byte = 0; byte < 48; byte++)
        order[byte % 3][byte / 16][byte / 3] = (int8_t)(byte % 16);
    int x = 0;
    for (; x + 16 <= width; x += 16) {
        __m128i third[3];
        for (int i = 0; i < 3; i++)
            third[i] = _mm_loadu_si128((const __m128i *)(line + 3 * x + 16 * i));
        for (int c = 0; c < target->channels; c++) {
            __m128i plane = _mm_setzero_si128();
            for (int i = 0; i < 3; i++)
                plane = _mm_or_si128(plane,
                                     _mm_shuffle_epi8(third[i], _mm_loadu_si128((const __m128i *)order[c][i])));
            _mm_storeu_si128((__m128i *)(row + c * target->channel + x), plane);
        }
    }
    return x;
}

/* Pixels of three bytes to pixels of four, the last of which is 255; 8 at a time. Returns how many pixels it took. */
FASTLOAD_TARGET_AVX2 static int fours_avx2(uint8_t *row, const uint8_t *line, int width)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, -128, 3, 4, 5, -128, 6, 7, 8, -128, 9, 10, 11, -128));
    const __m256i last = _mm256_set1_epi32((int)0xFF000000u);
    int x = 0;
    for (; x + 8 <= width; x += 8) {
        /* Reads 4 bytes more than it takes: lines are padded. */
        const __m256i pixels =
            _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(line + 3 * x))),
                                    _mm_loadu_si128((const __m128i *)(line + 3 * x + 12)), 1);
        _mm256_storeu_si256((__m256i *)(row + 4 * x), _mm256_or_si256(_mm256_shuffle_epi8(pixels, order), last));
    }
    return x;
}

/* Pixels of three bytes with the first and the last exchanged, five at a time. Returns how many pixels it took. */
FASTLOAD_TARGET_AVX2 static int exchanged_avx2(uint8_t *row, const uint8_t *line, int width)
{
    const __m128i order = _mm_setr_epi8(2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9, 14, 13, 12, -128);
    int x = 0;
    for (; x + 6 <= width; x += 5) /* writes a byte of the next pixel, which comes after */
        _mm_storeu_si128((__m128i *)(row + 3 * x),
                         _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(line + 3 * x)), order));
    return x;
}
#endif

static void store_fours(uint8_t *row, int level, const uint8_t *line, int width)
{
    int x = 0;
#ifdef FASTLOAD_X86
    if (level != FASTLOAD_PLAIN)
        x = fours_avx2(row, line, width);
#else
    (void)level;
#endif
    for (; x < width; x++) {
        memcpy(row + 4 * x, line + 3 * x, 3);
        row[4 * x + 3] = 255;
    }
}

void store_row(const struct target *target, int level, int y, const uint8_t *line, int width)
{
    uint8_t *row = target->data + y * target->row;
    if (target->channels == 4)
        store_fours(row, level, line, width);
    else if (!target->table) {
        if (target->channels == 3 && target->channel == 1 && target->column == 3) {
            memcpy(row, line, (size_t)3 * width);
            return;
        }
#ifdef FASTLOAD_X86
        if (level != FASTLOAD_PLAIN && target->channels == 3 && target->channel == -1 && target->column == 3) {
            const int done = exchanged_avx2(row - 2, line, width);
            row += 3 * done;
            line += 3 * done;
            width -= done;
        } else if (level != FASTLOAD_PLAIN && target->column == 1) {
            const int done = planes_avx2(target, row, line, width);
            row += done;
            line += 3 * done;
            width -= done;
        }
#endif
        STORE(uint8_t, LEVEL);
    } else if (target->element == 1)
        STORE(uint8_t, FROM_TABLE);
    else if (target->element == 2)
        STORE(uint16_t, FROM_TABLE);
    else
        STORE(uint32_t, FROM_TABLE);
}
