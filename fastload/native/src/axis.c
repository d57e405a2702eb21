/* Which source samples make each result along one axis, and with which weights. Computed as Pillow or
 * torch does. */
#include "resample.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

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

static double box(double x)
{
    return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

static double sinc(double x)
{
    return x == 0.0 ? 1.0 : sin(x * PI) / (x * PI);
}

/* Pillow's two constants are of single precision. */
static double hamming(double x)
{
    x = fabs(x);
    return x == 0.0 ? 1.0 : x >= 1.0 ? 0.0 : sinc(x) * (0.54f + 0.46f * cos(x * PI));
}

static double lanczos(double x)
{
    return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

static const struct {
    double (*kernel)(double);
    double support;
} FILTERS[FASTLOAD_NUM_FILTERS] = {
    [FASTLOAD_BILINEAR] = {bilinear, 1.0},       [FASTLOAD_BICUBIC] = {bicubic, 2.0},
    [FASTLOAD_BOX] = {box, 0.5},                 [FASTLOAD_HAMMING] = {hamming, 1.0},
    [FASTLOAD_LANCZOS] = {lanczos, 3.0},         [FASTLOAD_TENSOR_BILINEAR] = {bilinear, 1.0},
    [FASTLOAD_TENSOR_BICUBIC] = {bicubic, 2.0},
};

struct reach {
    double begin, scale, support;
    int in;
};

/* Which samples result i has: those whose middle lies within the filter's support around its own. */
static int sources(const struct reach *reach, int i, double *centre, int *first)
{
    *centre = reach->begin + (i + 0.5) * reach->scale;
    const int begin = (int)(*centre - reach->support + 0.5), end = (int)(*centre + reach->support + 0.5);
    *first = begin < 0 ? 0 : begin;
    return (end > reach->in ? reach->in : end) - *first;
}

/* The weights of result i, whose sum is 1; returns how many there are. The order of operations is that of the library
 * whose bits are wanted. */
static int weigh(const struct reach *reach, int i, int filter, double inverse, int *first, double *share)
{
    const int is_tensor = is_tensor_filter(filter);
    double centre, sum = 0.0;
    const int count = sources(reach, i, &centre, first);
    const double offset = *first - centre;
    for (int t = 0; t < count; t++) {
        const double distance = is_tensor ? t + offset + 0.5 : t + *first - centre + 0.5;
        share[t] = FILTERS[filter].kernel(distance * inverse);
        sum += share[t];
    }
    if (sum != 0.0)
        for (int t = 0; t < count; t++)
            share[t] /= sum;
    return count;
}

/* How many bits behind the point torch's weights have: as many as let the largest of the whole axis fit 16 bits. */
static int tensor_bits(const struct reach *reach, int out, int filter, double inverse, double *share)
{
    double largest = 0.0;
    int first, bits = 0;
    for (int i = 0; i < out; i++) {
        const int count = weigh(reach, i, filter, inverse, &first, share);
        for (int t = 0; t < count; t++)
            largest = share[t] > largest ? share[t] : largest;
    }
    while (bits < WEIGHT_BITS && (int)(0.5 + largest * (1 << (bits + 1))) < 1 << 15)
        bits++;
    return bits;
}

int is_tensor_filter(int filter)
{
    return filter == FASTLOAD_TENSOR_BILINEAR || filter == FASTLOAD_TENSOR_BICUBIC;
}

int is_copy(const struct stretch *s)
{
    return s->begin == (float)(int)s->begin && s->end - s->begin == (float)s->out;
}

void plan_copy(struct axis *axis, const struct stretch *s)
{
    axis->first = (int)s->begin + s->window;
    axis->in = axis->out = s->num;
    axis->taps = 0;
}

int plan_axis(struct axis *axis, struct block *memory, const struct stretch *s, int filter, int reversed)
{
    /* Without a stretch all filters give the sample itself: that with the fewest taps is the fastest. */
    if (is_copy(s))
        filter = FASTLOAD_BOX;
    const double scale = (double)(s->end - s->begin) / s->out;
    const double stretch = scale < 1.0 ? 1.0 : scale, inverse = 1.0 / stretch;
    const struct reach reach = {s->begin, scale, FILTERS[filter].support * stretch, s->in};
    double centre;
    int first, most = 1, begin = s->in - 1, end = 0;
    for (int i = s->window; i < s->window + s->num; i++) {
        const int count = sources(&reach, i, &centre, &first);
        most = count > most ? count : most;
        begin = first < begin ? first : begin;
        end = first + count > end ? first + count : end;
    }
    /* The weights of a result outside of the window may be more than those within, and torch's bits are of all. */
    const int reached = 2 * (int)ceil(reach.support) + 1, room = reached < s->in ? reached : s->in;
    const int taps = (most + 3) / 4 * 4;
    const size_t numbers = (size_t)s->num * 2 + (size_t)s->num * taps;
    uint8_t *data = reserve(memory, numbers * sizeof(int32_t) + (size_t)room * sizeof(double));
    if (!data)
        return FASTLOAD_NO_MEMORY;
    double *share = (double *)data;
    axis->first = begin;
    axis->in = end - begin;
    axis->out = s->num;
    axis->taps = taps;
    axis->start = (int32_t *)(share + room);
    axis->count = axis->start + s->num;
    axis->weight = axis->count + s->num;
    memset(axis->weight, 0, (size_t)s->num * taps * sizeof(int32_t));
    /* A weight of fewer bits is one of WEIGHT_BITS whose last are 0: the sums are rounded at the same place. */
    const int bits = is_tensor_filter(filter) ? tensor_bits(&reach, s->out, filter, inverse, share) : WEIGHT_BITS;
    for (int i = 0; i < s->num; i++) {
        const int count = weigh(&reach, s->window + i, filter, inverse, &first, share);
        first -= begin;
        const int place = reversed ? s->num - 1 - i : i;
        /* At the end, where fewer samples are left, places begin earlier, with weights of 0: vector kernels read the
         * samples of all taps. */
        const int late = first + taps - axis->in, early = late <= 0 ? 0 : late < first ? late : first;
        int32_t *weight = axis->weight + (size_t)place * taps + early;
        for (int t = 0; t < count; t++) {
            const double normal = share[t] * (1 << bits);
            weight[t] = (int32_t)(normal < 0 ? normal - 0.5 : normal + 0.5) * (1 << (WEIGHT_BITS - bits));
        }
        axis->start[place] = first - early;
        axis->count[place] = count + early;
    }
    return FASTLOAD_DONE;
}
