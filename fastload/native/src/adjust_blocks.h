/* Changes of colors, a block of pixels at a time; adjust.c includes this file once for each instruction set.
 *
 * Before the include: NAME(x), which gives each inclusion its own names; TARGET, the attribute of its functions.
 *
 * The loops are such that compilers make vectors of them: no branches, planes of a fixed length.
 */
struct NAME(planes) {
    uint8_t red[BLOCK], green[BLOCK], blue[BLOCK];
};

TARGET static inline void NAME(take_apart)(const uint8_t *pixels, int num, struct NAME(planes) * to)
{
    for (int i = 0; i < num; i++) {
        to->red[i] = pixels[3 * i];
        to->green[i] = pixels[3 * i + 1];
        to->blue[i] = pixels[3 * i + 2];
    }
}

TARGET static inline void NAME(put_together)(const struct NAME(planes) * from, int num, uint8_t *pixels)
{
    for (int i = 0; i < num; i++) {
        pixels[3 * i] = from->red[i];
        pixels[3 * i + 1] = from->green[i];
        pixels[3 * i + 2] = from->blue[i];
    }
}

/* Pillow's grey: weights of 16 bits, rounded. */
TARGET static inline int NAME(grey_of)(int red, int green, int blue)
{
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16;
}

TARGET static int64_t NAME(sum_of_greys)(const uint8_t *pixels, int64_t num)
{
    int64_t sum = 0;
    struct NAME(planes) block;
    while (num > 0) {
        int part = num < BLOCK ? (int)num : BLOCK, here = 0;
        NAME(take_apart)(pixels, part, &block);
        for (int i = 0; i < part; i++)
            here += NAME(grey_of)(block.red[i], block.green[i], block.blue[i]);
        sum += here;
        num -= part;
        pixels += 3 * part;
    }
    return sum;
}

TARGET static void NAME(greys)(const uint8_t *pixels, int64_t num, uint8_t *to)
{
    struct NAME(planes) block;
    while (num > 0) {
        int part = num < BLOCK ? (int)num : BLOCK;
        NAME(take_apart)(pixels, part, &block);
        for (int i = 0; i < part; i++)
            to[i] = (uint8_t)NAME(grey_of)(block.red[i], block.green[i], block.blue[i]);
        num -= part;
        pixels += 3 * part;
        to += part;
    }
}

/* Part of the way from one level to another, or beyond it, cut to 8 bits, as Pillow's blend makes it. */
TARGET static inline uint8_t NAME(mixed)(int from, int to, float part)
{
    float found = (float)from + part * (float)(to - from);
    found = found < 0 ? 0 : found;
    found = found > 255 ? 255 : found;
    return (uint8_t)(int)found;
}

/* A row of values of all channels between the outermost columns: mixed with what Pillow's SMOOTH makes of it, the sum of
 * nine neighbours and four times the value, divided by 13. That comes within 1/26 of no half, so Pillow's sums in single
 * precision are rounded to the same. */
TARGET static void NAME(sharpen_row)(const uint8_t *restrict above, const uint8_t *restrict row,
                                     const uint8_t *restrict below, uint8_t *restrict out, int num, float part)
{
    for (int i = 0; i < num; i++) {
        unsigned sum = above[i - 3] + above[i] + above[i + 3] + row[i - 3] + 5u * row[i] + row[i + 3] + below[i - 3] +
                       below[i] + below[i + 3];
        out[i] = NAME(mixed)((int)((2 * sum + 13) / 26), row[i], part);
    }
}

TARGET static void NAME(saturate)(struct NAME(planes) * block, float part)
{
    for (int i = 0; i < BLOCK; i++) {
        int red = block->red[i], green = block->green[i], blue = block->blue[i];
        int grey = NAME(grey_of)(red, green, blue);
        block->red[i] = NAME(mixed)(grey, red, part);
        block->green[i] = NAME(mixed)(grey, green, part);
        block->blue[i] = NAME(mixed)(grey, blue, part);
    }
}

/* To HSV of 8 bits, shifted by `steps`, and back.
 *
 * Pillow adds and subtracts three quotients, of which one is 0 and one is 1: what is left is one sum, which has the same
 * bits in single precision. So has all else but the two lines in double precision.
 *
 *   most    least   hue, in sixths      sector of the shifted hue   red       green     blue
 *   red     blue     1 - place          0, and 6                    most      rising    low
 *   green   blue     1 + place          1                           falling   most      low
 *   green   red      3 - place          2                           low       most      rising
 *   blue    red      3 + place          3                           low       falling   most
 *   blue    green    5 - place          4                           rising    low       most
 *   red     green   -1 + place          5                           most      low       falling
 */
TARGET static void NAME(shift_hue)(struct NAME(planes) * block, int steps)
{
    int value[BLOCK], hue[BLOCK];
    float turns[BLOCK], saturation[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        int red = block->red[i], green = block->green[i], blue = block->blue[i];
        int most = red > green ? red : green, least = red < green ? red : green;
        most = most > blue ? most : blue;
        least = least < blue ? least : blue;
        int range = most - least, middle = red + green + blue - most - least;
        /* All ones where it is so, else 0: compilers make branches of conditions on numbers in floating point. */
        int red_most = -(red == most), green_most = -(green == most) & ~red_most;
        int red_least = -(red == least), green_least = -(green == least);
        int rises = (red_most & green_least) | (green_most & ~red_least) | (~red_most & ~green_most & ~green_least);
        int base = CHOSEN(red_most, 1, CHOSEN(green_most, 3, 5)) - (2 & rises);
        float place = (float)(most - middle) / (float)(range + (range == 0));
        turns[i] = (float)base + (float)(1 | ~rises) * place;
        value[i] = most;
        saturation[i] = (float)(int)((float)range / (float)(most + (most == 0)) * 255.0f) / 255.0f;
    }
    for (int i = 0; i < BLOCK; i++) {
        double turn = (double)turns[i] / 6.0 + 1.0;
        turns[i] = (float)(turn - (double)(int)turn);
    }
    for (int i = 0; i < BLOCK; i++)
        hue[i] = (int)((double)turns[i] * 255.0);
    for (int i = 0; i < BLOCK; i++) {
        float sixth = (float)((hue[i] + steps) & 255) * 6.0f / 255.0f;
        int sector = (int)sixth, most = value[i];
        float place = sixth - (float)sector, full = (float)most, part = saturation[i];
        int low = (int)(full * (1.0f - part) + 0.5f);
        int falling = (int)(full * (1.0f - part * place) + 0.5f);
        int rising = (int)(full * (1.0f - part * (1.0f - place)) + 0.5f);
        int first = -(sector == 0) | -(sector == 6), second = -(sector == 1), third = -(sector == 2);
        int fourth = -(sector == 3), fifth = -(sector == 4), sixth_one = -(sector == 5);
        block->red[i] = (uint8_t)CHOSEN(first | sixth_one, most, CHOSEN(second, falling, CHOSEN(fifth, rising, low)));
        block->green[i] = (uint8_t)CHOSEN(second | third, most, CHOSEN(fourth, falling, CHOSEN(first, rising, low)));
        block->blue[i] = (uint8_t)CHOSEN(fourth | fifth, most, CHOSEN(sixth_one, falling, CHOSEN(third, rising, low)));
    }
}

TARGET static void NAME(change_blocks)(int change, uint8_t *pixels, int64_t num, float part, int steps)
{
    struct NAME(planes) block;
    memset(&block, 0, sizeof block);
    while (num > 0) {
        int here = num < BLOCK ? (int)num : BLOCK;
        NAME(take_apart)(pixels, here, &block);
        if (change == SATURATION)
            NAME(saturate)(&block, part);
        else
            NAME(shift_hue)(&block, steps);
        NAME(put_together)(&block, here, pixels);
        num -= here;
        pixels += 3 * here;
    }
}

#undef NAME
#undef TARGET
