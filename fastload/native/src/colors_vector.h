/* Rows of samples to rows of pixels, with the vectors of idct_vector.h. What a file that includes this defines moreover:
 *
 *   ALL16(number), MULHI, SHIFT16(x, n), PACK_UNSIGNED
 *                                  16 bits: the upper half of a product; to bytes from 0 to 255
 *   STORE_PIXELS(channel, out)     red, green and blue of as many pixels as a vector has bytes
 */
struct rgb {
    V channel[3];
};

/* 16 bits each: y from 0 to 255, cb and cr from -128 to 127. (x * factor + half) >> 16 is made of the upper half of a
 * product of 16 bits: that of 2 * x, rounded. */
TARGET INLINE struct rgb rgb_of(V y, V cb, V cr)
{
    const V one = ALL16(1), half = ALL32(1 << 15), factors = PAIR(GREEN_CB, GREEN_CR);
    const V cb2 = ADD(cb, cb), cr2 = ADD(cr, cr);
    const V red = SHIFT16(ADD(MULHI(cr2, ALL16(RED_CR)), one), 1);
    const V blue = SHIFT16(ADD(MULHI(cb2, ALL16(BLUE_CB)), one), 1);
    const V green = PACK32(SHIFT32(DOT(half, LOW16(cb, cr), factors), 16),
                           SHIFT32(DOT(half, HIGH16(cb, cr), factors), 16));
    return (struct rgb){{ADD(ADD(y, cr), red), ADD(SUB(y, cr), green), ADD(ADD(y, cb2), blue)}};
}

TARGET INLINE void to_rgb_row(const struct colors *from, uint8_t *out, int n)
{
    const V zero = ALL16(0), middle = ALL16(128);
    for (int i = 0; i < n; i += (int)sizeof(V), out += 3 * sizeof(V)) {
        const V y = LOAD(from->y + i), cb = LOAD(from->cb + i), cr = LOAD(from->cr + i);
        const struct rgb low = rgb_of(LOW8(y, zero), SUB(LOW8(cb, zero), middle), SUB(LOW8(cr, zero), middle));
        const struct rgb high = rgb_of(HIGH8(y, zero), SUB(HIGH8(cb, zero), middle), SUB(HIGH8(cr, zero), middle));
        V channel[3];
        for (int c = 0; c < 3; c++)
            channel[c] = PACK_UNSIGNED(low.channel[c], high.channel[c]);
        STORE_PIXELS(channel, out);
    }
}

TARGET INLINE void interleave_row(const uint8_t *const from[3], uint8_t *out, int n)
{
    for (int i = 0; i < n; i += (int)sizeof(V), out += 3 * sizeof(V)) {
        const V channel[3] = {LOAD(from[0] + i), LOAD(from[1] + i), LOAD(from[2] + i)};
        STORE_PIXELS(channel, out);
    }
}
