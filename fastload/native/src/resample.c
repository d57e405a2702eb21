/* A resize from the request to the last row, and the kernels in plain C. See resample.h. */
#include "resample.h"

#include <string.h>

#ifdef FASTLOAD_NEON
#define columns_plain columns_neon
#define rows_plain rows_neon
#else
static uint8_t clip(int32_t sum)
{
    sum >>= WEIGHT_BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void columns_of_row(const struct resizer *r, const uint8_t *row, uint8_t *out)
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

static void columns_plain(const struct resizer *r, const struct strip *strip)
{
    for (int i = 0; i < strip->num; i++)
        columns_of_row(r, strip->in + i * strip->in_stride, strip->out + i * strip->out_stride);
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
#endif

static int lies_inside(const int32_t part[4], int height, int width)
{
    return part[0] >= 0 && part[1] >= 0 && part[2] > 0 && part[3] > 0 && part[2] <= height && part[3] <= width &&
           part[0] <= height - part[2] && part[1] <= width - part[3];
}

static int is_target(const struct target *t)
{
    switch (t->channels) {
    case 3:
    case 1:
        return t->data && (t->element == 1 || ((t->element == 2 || t->element == 4) && t->table));
    case 4:
        return t->data && t->element == 1 && !t->table && t->column == 4 && t->channel == 1;
    default:
        return 0;
    }
}

int check_request(const struct fastload_request *q, int image_height, int image_width)
{
    const float *source = q->source;
    /* What is not a number compares as false. */
    const int sourced = source[0] >= 0 && source[1] >= 0 && source[2] >= source[0] && source[3] >= source[1] &&
                        source[2] <= (float)q->box[3] && source[3] <= (float)q->box[2];
    const int sized = q->size[0] > 0 && q->size[1] > 0 && q->size[0] <= FASTLOAD_MAX_SIDE &&
                      q->size[1] <= FASTLOAD_MAX_SIDE;
    const int known = q->filter >= 0 && q->filter < FASTLOAD_NUM_FILTERS && q->flips >= 0 &&
                      q->flips <= (FASTLOAD_LEFT_RIGHT | FASTLOAD_UPSIDE_DOWN) &&
                      q->order >= FASTLOAD_COLUMNS_FIRST && q->order <= FASTLOAD_STRIPS_ROWS_FIRST;
    return lies_inside(q->box, image_height, image_width) && sourced && sized &&
                   lies_inside(q->window, q->size[0], q->size[1]) && known && is_target(&q->target)
               ? FASTLOAD_DONE
               : FASTLOAD_BAD_ARGUMENT;
}

int resizer_begin(struct resizer *r, struct fastload_scratch *scratch, const struct fastload_request *q)
{
    memset(r, 0, sizeof *r);
    r->level = fastload_level;
    r->target = q->target;
    if (q->flips & FASTLOAD_UPSIDE_DOWN) {
        r->target.data += (q->window[2] - 1) * q->target.row;
        r->target.row = -q->target.row;
    }
    const int flip = q->flips & FASTLOAD_LEFT_RIGHT;
    const struct stretch columns = {q->source[0], q->source[2], q->box[3], q->size[1], q->window[1], q->window[3]};
    const struct stretch rows = {q->source[1], q->source[3], q->box[2], q->size[0], q->window[0], q->window[2]};
    r->copies_columns = is_copy(&columns) && !flip;
    plan_copy(&r->columns, &columns);
    plan_copy(&r->rows, &rows);
    if (!r->copies_columns && plan_axis(&r->columns, &scratch->axes[0], &columns, q->filter, flip))
        return FASTLOAD_NO_MEMORY;
    if (!is_copy(&rows) && plan_axis(&r->rows, &scratch->axes[1], &rows, q->filter, 0))
        return FASTLOAD_NO_MEMORY;
    /* The order is that of the whole request, whatever part of it is wanted. */
    const int is_tall = q->order == FASTLOAD_TALL_ROWS_FIRST && rows.in - rows.out > 2 * (columns.in - columns.out);
    const int is_strip = q->order == FASTLOAD_STRIPS_ROWS_FIRST && rows.in > 100.0 * columns.in;
    r->rows_first = !r->copies_columns && r->rows.taps && rows.in > rows.out && (is_tall || is_strip) &&
                    !is_tensor_filter(q->filter);
    r->kept_width = r->rows_first ? r->columns.in : r->columns.out;
    r->kept_stride = padded(r->kept_width);
    const size_t line = padded(r->columns.out);
    r->kept = reserve(&scratch->rows, r->kept_stride * (r->rows.taps ? (size_t)r->rows.in : 1));
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
    if (r->copies_columns) {
        for (int i = 0; i < strip->num; i++)
            memcpy(strip->out + i * strip->out_stride, strip->in + i * strip->in_stride, (size_t)3 * r->columns.out);
        return;
    }
#ifdef FASTLOAD_X86
    if (r->level == FASTLOAD_AVX512 && !r->wide_columns) {
        columns_avx512(r, strip);
        return;
    }
    if (r->level != FASTLOAD_PLAIN) {
        columns_avx2(r, strip);
        return;
    }
#endif
    columns_plain(r, strip);
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
        for (int i = 0; i < num; i++, in += stride) {
            if (!r->copies_columns)
                resize_columns(r, &(struct strip){in, stride, r->line, 0, 1});
            store_row(&r->target, r->level, r->gone++, r->copies_columns ? in : r->line, r->columns.out);
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

/* From an image in memory to a row of a batch. `pixels`: 8 bits a channel, rows `stride` bytes apart; `channels`: 3 for
 * RGB, 1 for grey, which becomes three equal channels. The rest as in fastload_jpeg_row. */
FASTLOAD_EXPORT int fastload_image_row(struct fastload_scratch *scratch, const uint8_t *pixels, int64_t stride,
                                       int32_t channels, int32_t height, int32_t width,
                                       const struct fastload_request *request)
{
    if (check_request(request, height, width) != FASTLOAD_DONE || (channels != 1 && channels != 3))
        return FASTLOAD_BAD_ARGUMENT;
    struct resizer r;
    const int status = resizer_begin(&r, scratch, request);
    if (status != FASTLOAD_DONE)
        return status;
    const int top = request->box[0] + r.rows.first, left = request->box[1] + r.columns.first;
    const int rows = r.rows.in, columns = r.columns.in;
    const size_t apart = padded(columns);
    uint8_t *copies = reserve(&scratch->pixels, apart * ROWS_AT_ONCE);
    if (!copies)
        return FASTLOAD_NO_MEMORY;
    for (int y = 0; y < rows; y += ROWS_AT_ONCE) {
        const int num = rows - y < ROWS_AT_ONCE ? rows - y : ROWS_AT_ONCE;
        for (int i = 0; i < num; i++) {
            const uint8_t *row = pixels + (top + y + i) * stride + (int64_t)channels * left;
            uint8_t *copy = copies + i * apart;
            if (channels == 3)
                memcpy(copy, row, (size_t)3 * columns);
            else
                for (int x = 0; x < columns; x++)
                    copy[3 * x] = copy[3 * x + 1] = copy[3 * x + 2] = row[x];
        }
        resizer_push(&r, copies, apart, num);
    }
    return FASTLOAD_DONE;
}
