/* Plans of a resize, and the kernels in plain C. See resample.h. */
#include "resample.h"

#include <math.h>
#include <string.h>

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Keys (1981) with a = -0.5. */
static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0)
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

struct reach {
    double scale, support;
    int in;
};

/* Which sources result i has: those whose middle lies within the filter's support around its own. */
static int sources(const struct reach *reach, int i, double *centre, int *first)
{
    *centre = (i + 0.5) * reach->scale;
    const int begin = (int)(*centre - reach->support + 0.5), end = (int)(*centre + reach->support + 0.5);
    *first = begin < 0 ? 0 : begin;
    return (end > reach->in ? reach->in : end) - *first;
}

/* The weights of one axis, computed as Pillow does: in double precision, normalised, then rounded half away from 0. */
static int plan_axis(struct axis *axis, struct block *memory, int in, int out, int filter, int reversed)
{
    double (*const kernel)(double) = filter == FASTLOAD_BICUBIC ? bicubic : bilinear;
    const double scale = (double)in / out;
    const double stretch = scale < 1.0 ? 1.0 : scale;
    const struct reach reach = {scale, (filter == FASTLOAD_BICUBIC ? 2.0 : 1.0) * stretch, in};
    const double inverse = 1.0 / stretch;
    double centre;
    int first, most = 0;
    for (int i = 0; i < out; i++) {
        const int count = sources(&reach, i, &centre, &first);
        most = count > most ? count : most;
    }
    const int taps = (most + 3) / 4 * 4;
    const size_t numbers = (size_t)out * 2 + (size_t)out * taps;
    uint8_t *data = reserve(memory, numbers * sizeof(int32_t) + (size_t)most * sizeof(double));
    if (!data)
        return FASTLOAD_NO_MEMORY;
    double *share = (double *)data;
    axis->in = in;
    axis->out = out;
    axis->taps = taps;
    axis->start = (int32_t *)(share + most);
    axis->count = axis->start + out;
    axis->weight = axis->count + out;
    memset(axis->weight, 0, (size_t)out * taps * sizeof(int32_t));
    for (int i = 0; i < out; i++) {
        const int count = sources(&reach, i, &centre, &first);
        double sum = 0.0;
        for (int t = 0; t < count; t++) {
            share[t] = kernel((t + first - centre + 0.5) * inverse);
            sum += share[t];
        }
        const int place = reversed ? out - 1 - i : i;
        /* At the end, where fewer sources are left, places begin earlier, with weights of 0: vector kernels read the
         * sources of all taps. */
        const int late = first + taps - in, early = late <= 0 ? 0 : late < first ? late : first;
        int32_t *weight = axis->weight + (size_t)place * taps + early;
        for (int t = 0; t < count; t++) {
            const double normal = (sum != 0.0 ? share[t] / sum : share[t]) * (1 << WEIGHT_BITS);
            weight[t] = (int32_t)(normal < 0 ? normal - 0.5 : normal + 0.5);
        }
        axis->start[place] = first - early;
        axis->count[place] = count + early;
    }
    return FASTLOAD_DONE;
}

static void plan_copy(struct axis *axis, int length)
{
    axis->in = axis->out = length;
    axis->taps = 0;
}

static uint8_t clip(int32_t sum)
{
    sum >>= WEIGHT_BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void columns_plain(const struct resizer *r, const uint8_t *row, uint8_t *out)
{
    const struct axis *axis = &r->columns;
    for (int x = 0; x < axis->out; x++, out += 3) {
        const int32_t *weight = axis->weight + (size_t)x * axis->taps;
        const uint8_t *in = row + 3 * (size_t)axis->start[x];
        const int count = axis->count[x];
        int32_t red = 1 << (WEIGHT_BITS - 1), green = red, blue = red;
        for (int t = 0; t < count; t++, in += 3) {
            red += in[0] * weight[t];
            green += in[1] * weight[t];
            blue += in[2] * weight[t];
        }
        out[0] = clip(red);
        out[1] = clip(green);
        out[2] = clip(blue);
    }
}

static void rows_plain(const struct resizer *r, int y, uint8_t *out)
{
    const struct axis *axis = &r->rows;
    const int32_t *weight = axis->weight + (size_t)y * axis->taps;
    const uint8_t *in = r->kept + (size_t)axis->start[y] * r->kept_stride;
    const int count = axis->count[y], n = 3 * r->kept_width;
    int32_t sums[64];
    for (int x = 0; x < n; x += 64) {
        for (int i = 0; i < 64; i++)
            sums[i] = 1 << (WEIGHT_BITS - 1);
        for (int t = 0; t < count; t++) {
            const uint8_t *from = in + (size_t)t * r->kept_stride + x;
            const int32_t w = weight[t];
            for (int i = 0; i < 64; i++)
                sums[i] += from[i] * w;
        }
        for (int i = 0; i < 64; i++)
            out[x + i] = clip(sums[i]);
    }
}

int check_request(int image_height, int image_width, const int32_t box[4], int height, int width, int filter,
                  int order, const struct target *target)
{
    const int inside = box[0] >= 0 && box[1] >= 0 && box[2] > 0 && box[3] > 0 && box[2] <= image_height &&
                       box[3] <= image_width && box[0] <= image_height - box[2] && box[1] <= image_width - box[3];
    const int sized = height > 0 && width > 0 && height <= FASTLOAD_MAX_SIDE && width <= FASTLOAD_MAX_SIDE;
    const int element = target->element == 1 || ((target->element == 2 || target->element == 4) && target->table);
    const int known = filter == FASTLOAD_BILINEAR || filter == FASTLOAD_BICUBIC;
    const int ordered = order == FASTLOAD_COLUMNS_FIRST || order == FASTLOAD_TALL_ROWS_FIRST;
    return inside && sized && element && known && ordered && target->data ? FASTLOAD_DONE : FASTLOAD_BAD_ARGUMENT;
}

int resizer_begin(struct resizer *r, struct fastload_scratch *scratch, int in_height, int in_width, int height,
                  int width, int filter, int order, int flip, int level, const struct target *target)
{
    memset(r, 0, sizeof *r);
    r->level = fastload_level(level);
    r->target = *target;
    r->copies_columns = in_width == width && !flip;
    plan_copy(&r->columns, width);
    plan_copy(&r->rows, height);
    if (!r->copies_columns && plan_axis(&r->columns, &scratch->axes[0], in_width, width, filter, flip))
        return FASTLOAD_NO_MEMORY;
    if (in_height != height && plan_axis(&r->rows, &scratch->axes[1], in_height, height, filter, 0))
        return FASTLOAD_NO_MEMORY;
    r->rows_first = order == FASTLOAD_TALL_ROWS_FIRST && !r->copies_columns && in_height > height &&
                    in_height - height > 2 * (in_width - width);
    r->kept_width = r->rows_first ? in_width : width;
    r->kept_stride = ((size_t)3 * r->kept_width + ROW_PADDING + 63) / 64 * 64;
    const size_t line = ((size_t)3 * width + ROW_PADDING + 63) / 64 * 64;
    r->kept = reserve(&scratch->rows, r->kept_stride * (in_height == height ? 1 : (size_t)in_height));
    r->line = reserve(&scratch->result, line + r->kept_stride);
    if (!r->kept || !r->line)
        return FASTLOAD_NO_MEMORY;
    r->middle = r->line + line;
#ifdef FASTLOAD_X86
    if (r->level != FASTLOAD_PLAIN) {
        const int best = r->level == FASTLOAD_AVX512;
        const size_t size = best ? tables_avx512(&r->columns, &r->rows) : tables_avx2(&r->columns, &r->rows);
        void *tables = reserve(&scratch->tables, size);
        if (!tables)
            return FASTLOAD_NO_MEMORY;
        (best ? fill_tables_avx512 : fill_tables_avx2)(r, tables);
    }
#endif
    return FASTLOAD_DONE;
}

static void resize_columns(const struct resizer *r, const struct strip *strip)
{
#ifdef FASTLOAD_X86
    if (!r->copies_columns && r->level == FASTLOAD_AVX512 && !r->wide_columns) {
        columns_avx512(r, strip);
        return;
    }
    if (!r->copies_columns && r->level != FASTLOAD_PLAIN) {
        columns_avx2(r, strip);
        return;
    }
#endif
    for (int i = 0; i < strip->num; i++) {
        const uint8_t *in = strip->in + i * strip->in_stride;
        uint8_t *out = strip->out + i * strip->out_stride;
        if (r->copies_columns)
            memcpy(out, in, (size_t)3 * r->columns.out);
        else
            columns_plain(r, in, out);
    }
}

static void resize_rows(const struct resizer *r, int y, uint8_t *out)
{
    switch (r->level) {
#ifdef FASTLOAD_X86
    case FASTLOAD_AVX512:
        rows_avx512(r, y, out);
        break;
    case FASTLOAD_AVX2:
        rows_avx2(r, y, out);
        break;
#endif
    default:
        rows_plain(r, y, out);
    }
}

void resizer_push(struct resizer *r, const uint8_t *in, size_t stride, int num)
{
    const struct axis *rows = &r->rows;
    if (!rows->taps) {
        for (int i = 0; i < num; i++) {
            resize_columns(r, &(struct strip){in + i * stride, stride, r->line, 0, 1});
            store_row(&r->target, r->level, r->gone++, r->line, r->columns.out);
        }
        return;
    }
    uint8_t *kept = r->kept + (size_t)r->come * r->kept_stride;
    r->come += num;
    if (r->rows_first)
        for (int i = 0; i < num; i++)
            memcpy(kept + i * r->kept_stride, in + i * stride, (size_t)3 * r->kept_width);
    else
        resize_columns(r, &(struct strip){in, stride, kept, r->kept_stride, num});
    for (; r->gone < rows->out && rows->start[r->gone] + rows->count[r->gone] <= r->come; r->gone++) {
        resize_rows(r, r->gone, r->rows_first ? r->middle : r->line);
        if (r->rows_first)
            resize_columns(r, &(struct strip){r->middle, 0, r->line, 0, 1});
        store_row(&r->target, r->level, r->gone, r->line, r->columns.out);
    }
}

/* From an image in memory to a row of a batch. `pixels`: 8-bit RGB, rows `stride` bytes apart. `box`: top, left, height
 * and width of the part that counts; inside the image. The rest as in fastload_jpeg_row. */
FASTLOAD_EXPORT int fastload_image_row(struct fastload_scratch *scratch, const uint8_t *pixels, int64_t stride,
                                       int32_t image_height, int32_t image_width, const int32_t box[4], int32_t height,
                                       int32_t width, int32_t filter, int32_t order, int32_t flip, void *out,
                                       int64_t out_row, int64_t out_column, int64_t out_channel, int32_t element,
                                       const void *table, int32_t level)
{
    const struct target target = {out, out_row, out_column, out_channel, element, table};
    int status = check_request(image_height, image_width, box, height, width, filter, order, &target);
    if (status != FASTLOAD_DONE)
        return status;
    struct resizer r;
    status = resizer_begin(&r, scratch, box[2], box[3], height, width, filter, order, flip, level, &target);
    if (status != FASTLOAD_DONE)
        return status;
    const size_t bytes = (size_t)3 * box[3], apart = bytes + ROW_PADDING;
    uint8_t *copies = reserve(&scratch->pixels, apart * ROWS_AT_ONCE);
    if (!copies)
        return FASTLOAD_NO_MEMORY;
    for (int y = 0; y < box[2]; y += ROWS_AT_ONCE) {
        const int num = box[2] - y < ROWS_AT_ONCE ? box[2] - y : ROWS_AT_ONCE;
        for (int i = 0; i < num; i++)
            memcpy(copies + i * apart, pixels + (box[0] + y + i) * stride + (size_t)3 * box[1], bytes);
        resizer_push(&r, copies, apart, num);
    }
    return FASTLOAD_DONE;
}
