/* See picture.h. */
#include "picture.h"
#include "resample.h"

#include <string.h>

const uint8_t ZIGZAG_PLACES[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

static int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

static int clamp(int x, int low, int high)
{
    return x < low ? low : x > high ? high : x;
}

/* libjpeg repeats samples where it does not weigh them: those of components that are at most two samples wide, or a
 * quarter of the image. */
static int is_weighed(const struct picture *p, const struct plane *plane)
{
    const int across = p->max_h / plane->h;
    return across == 1 || (across == 2 && plane->width > 2);
}

static void begin_plane(struct picture *p, const struct jpeg_header *header, int c)
{
    struct plane *plane = &p->plane[c];
    const struct jpeg_component *component = &header->component[c];
    plane->h = component->h;
    plane->v = component->v;
    plane->width = divide_up(p->width * plane->h, p->max_h);
    plane->height = divide_up(p->height * plane->v, p->max_v);
    plane->first = p->first_mcu * plane->h / GROUP * GROUP;
    plane->last = (p->last_mcu + 1) * plane->h - 1;
    plane->ring = 8 * plane->v * (p->needs_context ? 2 : 1) - 1;
    const int blocks = divide_up(plane->last - plane->first + 1, GROUP) * GROUP;
    plane->stride = (size_t)8 * blocks + 2 * SAMPLE_PADDING;
    const uint8_t *quant = header->quant[component->quant];
    const int is_wide = header->is_wide[component->quant];
    for (int k = 0; k < 64; k++)
        plane->quant[ZIGZAG_PLACES[k]] = (int16_t)(is_wide ? quant[2 * k] << 8 | quant[2 * k + 1] : quant[k]);
}

int picture_begin(struct picture *p, struct fastload_scratch *scratch, const struct jpeg_header *header,
                  const int part[4], int level)
{
    memset(p, 0, sizeof *p);
    p->width = header->width;
    p->height = header->height;
    p->num = header->components;
    p->is_rgb = header->is_rgb;
    p->max_h = header->component[0].h; /* the others have 1 */
    p->max_v = header->component[0].v;
    p->needs_context = p->max_v > 1;
    p->level = level;
    p->left = part[1];
    p->right = part[1] + part[3];
    const int wide = 8 * p->max_h, tall = 8 * p->max_v;
    p->mcus = divide_up(p->width, wide);
    p->mcu_rows = divide_up(p->height, tall);
    p->first_mcu = clamp(p->left - p->max_h, 0, p->width - 1) / wide;
    p->last_mcu = clamp(p->right - 1 + p->max_h, 0, p->width - 1) / wide;
    p->first_row = clamp(part[0] - p->needs_context, 0, p->height - 1) / tall;
    p->last_row = clamp(part[0] + part[2] - 1 + p->needs_context, 0, p->height - 1) / tall;
    size_t size = 3 * MOST_V * 2 * GROUP_STRIDE * sizeof(int16_t);
    const size_t line = ((size_t)wide * (p->last_mcu - p->first_mcu + 1) + 63) / 64 * 64 + 2 * SAMPLE_PADDING;
    for (int c = 0; c < p->num; c++) {
        begin_plane(p, header, c);
        size += (p->plane[c].ring + 1) * p->plane[c].stride + line;
    }
    uint8_t *memory = reserve(&scratch->planes, size + line * sizeof(uint16_t));
    if (!memory)
        return FASTLOAD_NO_MEMORY;
    p->groups = (int16_t *)memory;
    memset(memory, 0, 3 * MOST_V * 2 * GROUP_STRIDE * sizeof(int16_t));
    memory += 3 * MOST_V * 2 * GROUP_STRIDE * sizeof(int16_t);
    p->sums = (uint16_t *)memory + SAMPLE_PADDING;
    memory += line * sizeof(uint16_t);
    for (int c = 0; c < p->num; c++) {
        p->plane[c].rows = memory + SAMPLE_PADDING;
        memory += (p->plane[c].ring + 1) * p->plane[c].stride;
        p->line[c] = memory + SAMPLE_PADDING;
        memory += line;
    }
    return FASTLOAD_DONE;
}

static void keep_group(const struct picture *p, int component, int row, int column, int16_t *group)
{
    const int blocks = blocks_across(p, component), num = blocks - column < GROUP ? blocks - column : GROUP;
    int16_t *to = p->plane[component].kept + ((size_t)row * blocks + column) * 64;
    for (int i = 0; i < num; i++)
        for (int y = 0; y < 8; y++, to += 8)
            memcpy(to, group + y * GROUP * 8 + i * 8, 8 * sizeof *to);
    memset(group, 0, GROUP_SIZE * sizeof *group);
}

void finish_group(const struct picture *p, int component, int row, int column, int16_t *group, enum extent extent)
{
    const struct plane *plane = &p->plane[component];
    if (p->packer) {
        pack_group(p, component, row, column, group, extent);
        return;
    }
    if (plane->kept) {
        keep_group(p, component, row, column, group);
        return;
    }
    uint8_t *out = sample(plane, 8 * row, 8 * column);
    switch (p->level) {
#ifdef FASTLOAD_X86
    case FASTLOAD_AVX512:
        idct_avx512(group, plane->quant, out, plane->stride, extent);
        break;
    case FASTLOAD_AVX2:
        idct_avx2(group, plane->quant, out, plane->stride, extent);
        break;
#endif
    default:
#if defined(FASTLOAD_NEON)
        idct_neon(group, plane->quant, out, plane->stride, extent);
#elif defined(FASTLOAD_SSE2)
        idct_sse2(group, plane->quant, out, plane->stride, extent);
#else
        (void)extent;
        idct_plain(group, plane->quant, out, plane->stride);
#endif
    }
}

int finish_mcu_row(const struct picture *p, int mcu_row)
{
    /* Beside the first and the last sample stands that sample again: then weighing them needs no cases. */
    for (int c = 0; c < p->num; c++) {
        const struct plane *plane = &p->plane[c];
        for (int i = 0; i < 8 * plane->v && plane->h < p->max_h; i++) {
            uint8_t *row = sample(plane, 8 * plane->v * mcu_row + i, 8 * plane->first);
            if (plane->first == 0)
                row[-1] = row[0];
            const int width = plane->width - 8 * plane->first;
            if (p->last_mcu == p->mcus - 1)
                row[width] = row[width - 1];
        }
    }
    const int below = (mcu_row + 1) * 8 * p->max_v;
    return below >= p->height ? p->height : below - p->needs_context;
}

/* The wanted samples of a component in a row of the image, at full width. */
static const uint8_t *full_row(const struct picture *p, int c, int y)
{
    const struct plane *plane = &p->plane[c];
    const int across = p->max_h / plane->h, down = p->max_v / plane->v;
    if (across == 1 && down == 1)
        return sample(plane, y, p->left);
    const int first = p->left / across, n = (p->right - 1) / across + 1 - first;
    const uint8_t *near = sample(plane, y / down, first);
    uint8_t *out = p->line[c];
    if (!is_weighed(p, plane)) {
        for (int i = 0; i < n; i++)
            for (int k = 0; k < across; k++)
                out[i * across + k] = near[i];
    } else if (down == 1) {
        upsample_h2v1(p->level, near, out, n);
    } else {
        const int is_lower = y % 2;
        const uint8_t *far = sample(plane, clamp(y / 2 + (is_lower ? 1 : -1), 0, plane->height - 1), first);
        if (across == 1)
            upsample_h1v2(p->level, near, far, is_lower ? 2 : 1, out, n);
        else
            upsample_h2v2(p->level, near, far, p->sums, out, n);
    }
    return out + p->left - first * across;
}

void picture_row(const struct picture *p, int y, uint8_t *out)
{
    const int n = p->right - p->left;
    const uint8_t *row[3];
    for (int c = 0; c < 3; c++)
        row[c] = c < p->num ? full_row(p, c, y) : row[0];
    if (p->num == 3 && !p->is_rgb)
        to_rgb(p->level, &(struct colors){row[0], row[1], row[2]}, out, n);
    else
        interleave(p->level, row, out, n);
}
