/* Changes of colors, a block of pixels at a time; distort.c includes this file once for each instruction set.
 *
 * Before the include: NAME(x), which gives each inclusion its own names; TARGET, the attribute of its functions.
 *
 * The loops are such that compilers make vectors of them: no branches, planes of a fixed length.
 */

TARGET static inline void NAME(take_apart)(const uint8_t *from, const struct place *place, int num, struct planes *to)
{
    if (place->column == 1) {
        for (int channel = 0; channel < 3; channel++)
            memcpy(to->of[channel], from + channel * place->channel, (size_t)num);
        return;
    }
    for (int i = 0; i < num; i++) {
        to->of[0][i] = from[3 * i];
        to->of[1][i] = from[3 * i + 1];
        to->of[2][i] = from[3 * i + 2];
    }
}

TARGET static inline void NAME(put_together)(const struct planes *from, int num, uint8_t *to, const struct place *place)
{
    if (place->column == 1) {
        for (int channel = 0; channel < 3; channel++)
            memcpy(to + channel * place->channel, from->of[channel], (size_t)num);
        return;
    }
    for (int i = 0; i < num; i++) {
        to[3 * i] = from->of[0][i];
        to[3 * i + 1] = from->of[1][i];
        to[3 * i + 2] = from->of[2][i];
    }
}

/* A product added to a number: with one rounding, or with two. `fused` is a constant where it is called. */
TARGET static inline float NAME(added)(float sum, float a, float b, int fused)
{
    return fused ? fmaf(a, b, sum) : sum + a * b;
}

TARGET static inline int NAME(grey_of)(float red, float green, float blue, int fused)
{
    float sum = NAME(added)(red * 0.2989f, green, 0.587f, fused);
    return (int)NAME(added)(sum, blue, 0.114f, fused);
}

TARGET static inline void NAME(greys_of)(const struct planes *block, float *to, int num, int fused)
{
    for (int i = 0; i < num; i++)
        to[i] = (float)NAME(grey_of)(block->of[0][i], block->of[1][i], block->of[2][i], fused);
}

TARGET static void NAME(row_of_greys)(const uint8_t *from, const struct place *place, int64_t num, float *to, int fused)
{
    struct planes block;
    for (int64_t done = 0; done < num; done += BLOCK) {
        int here = num - done < BLOCK ? (int)(num - done) : BLOCK;
        NAME(take_apart)(from + done * place->column, place, here, &block);
        if (fused)
            NAME(greys_of)(&block, to + done, here, 1);
        else
            NAME(greys_of)(&block, to + done, here, 0);
    }
}

/* Some of a level and some of a grey, cut to 8 bits. */
TARGET static inline uint8_t NAME(mixed)(float level, float grey, const struct numbers *numbers, int fused)
{
    float found = NAME(added)(level * numbers->part, grey, numbers->rest, fused);
    found = found < 0 ? 0 : found;
    found = found > 255 ? 255 : found;
    return (uint8_t)(int)found;
}

TARGET static inline void NAME(saturate)(struct planes *block, const struct numbers *numbers, int fused)
{
    for (int i = 0; i < BLOCK; i++) {
        float red = block->of[0][i], green = block->of[1][i], blue = block->of[2][i];
        float grey = (float)NAME(grey_of)(red, green, blue, fused);
        block->of[0][i] = NAME(mixed)(red, grey, numbers, fused);
        block->of[1][i] = NAME(mixed)(green, grey, numbers, fused);
        block->of[2][i] = NAME(mixed)(blue, grey, numbers, fused);
    }
}

/* To HSV of numbers up to 1, turned, and back.
 *
 * torchvision divides the distances of all three channels from the largest by the range. Of the largest channel it is
 * 0, of the smallest 1, so that of the middle one, the place, is left; and the hue, in sixths, is
 *
 *   most    least   hue                 sector of the turned hue    red       green     blue
 *   red     blue    1 - place           0, and 6                    most      rising    low
 *   green   blue    (2 + place) - 1     1                           falling   most      low
 *   green   red     3 - place           2                           low       most      rising
 *   blue    red     (4 + place) - 1     3                           low       falling   most
 *   blue    green   5 - place           4                           rising    low       most
 *   red     green   -1 + place          5                           most      low       falling
 *
 * with two roundings where there are two sums. Equal channels count as torchvision has it: red as the most before
 * green, green before blue; which of two is the least makes no difference. It also cuts rising, falling and low to
 * [0, 1], where they are in any case. Version 1 divides where version 2 multiplies by the reciprocal, and rises in
 * another way. `is_1` is a constant where it is called.
 */
TARGET static inline void NAME(turn_hue)(struct planes *block, float turn, int is_1)
{
    const float unit = (float)(1.0 / 255.0), sixth = (float)(1.0 / 6.0), scale = (float)(255.0 + 1.0 - 1e-3);
    float hue[BLOCK], saturation[BLOCK], value[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        int red = block->of[0][i], green = block->of[1][i], blue = block->of[2][i];
        int most = red > green ? red : green, least = red < green ? red : green;
        most = most > blue ? most : blue;
        least = least < blue ? least : blue;
        int middle = red + green + blue - most - least;
        /* All ones where it is so, else 0: compilers make branches of conditions on numbers in floating point. */
        int red_most = -(red == most), green_most = -(green == most) & ~red_most, is_grey = -(most == least);
        int red_least = -(red == least), green_least = -(green == least);
        int rises = (red_most & green_least) | (green_most & ~red_least) | (~red_most & ~green_most & ~green_least);
        int base = CHOSEN(red_most, 1 - (2 & rises), CHOSEN(green_most, 3 - (1 & rises), 5 - (1 & rises)));
        float most_of_1 = is_1 ? (float)most / 255.0f : (float)most * unit;
        float least_of_1 = is_1 ? (float)least / 255.0f : (float)least * unit;
        float middle_of_1 = is_1 ? (float)middle / 255.0f : (float)middle * unit;
        float range = most_of_1 - least_of_1;
        float place = (most_of_1 - middle_of_1) / (range + (float)(1 & is_grey));
        float sum = (float)base + (float)(1 | ~rises) * place - (float)(1 & rises & ~red_most);
        sum = (is_1 ? sum / 6.0f : sum * sixth) + 1.0f;
        /* Greys have the hue 0. */
        hue[i] = (float)(1 & ~is_grey) * (sum - (float)(int)sum) + turn;
        saturation[i] = range / (most_of_1 + (float)(1 & is_grey));
        value[i] = most_of_1;
    }
    for (int i = 0; i < BLOCK; i++) {
        /* From [-0.5, 1.5) to [0, 1]: by the whole part, rounded down. */
        int32_t bits;
        memcpy(&bits, &hue[i], sizeof bits);
        hue[i] -= (float)((int)hue[i] + (bits >> 31));
    }
    for (int i = 0; i < BLOCK; i++) {
        float six = hue[i] * 6.0f, most = value[i], part = saturation[i];
        int sector = (int)six;
        float place = six - (float)sector;
        float less = part * place, full = 1.0f - part;
        float risen = is_1 ? 1.0f - part * (1.0f - place) : less + full;
        int peak = (int)(most * scale), low = (int)(full * most * scale);
        int falling = (int)((1.0f - less) * most * scale), rising = (int)(risen * most * scale);
        int first = -(sector == 0) | -(sector == 6), second = -(sector == 1), third = -(sector == 2);
        int fourth = -(sector == 3), fifth = -(sector == 4), last = -(sector == 5);
        block->of[0][i] = (uint8_t)CHOSEN(first | last, peak, CHOSEN(second, falling, CHOSEN(fifth, rising, low)));
        block->of[1][i] = (uint8_t)CHOSEN(second | third, peak, CHOSEN(fourth, falling, CHOSEN(first, rising, low)));
        block->of[2][i] = (uint8_t)CHOSEN(fourth | fifth, peak, CHOSEN(last, falling, CHOSEN(third, rising, low)));
    }
}

TARGET static void NAME(change_row)(int change, const uint8_t *from, const struct place *source, uint8_t *to,
                                    const struct place *target, int64_t num, const struct numbers *numbers,
                                    int fused)
{
    struct planes block;
    memset(&block, 0, sizeof block);
    for (int64_t done = 0; done < num; done += BLOCK) {
        int here = num - done < BLOCK ? (int)(num - done) : BLOCK;
        NAME(take_apart)(from + done * source->column, source, here, &block);
        if (change == HUE)
            NAME(turn_hue)(&block, numbers->turn, 0);
        else if (change == HUE_1)
            NAME(turn_hue)(&block, numbers->turn, 1);
        else if (change == SATURATION && fused)
            NAME(saturate)(&block, numbers, 1);
        else if (change == SATURATION)
            NAME(saturate)(&block, numbers, 0);
        NAME(put_together)(&block, here, to + done * target->column, target);
    }
}

#undef NAME
#undef TARGET
