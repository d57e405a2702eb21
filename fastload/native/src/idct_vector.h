/* The inverse transform with vectors of 16-bit numbers, included by the file of each instruction set, which defines:
 *
 *   V, TARGET, BLOCKS              the vector type, the function attribute, and how many blocks a vector has
 *   LOAD(p), STORE_ZERO(p), ROW(p) a vector of memory; zero to memory; 8 numbers, again for each block
 *   ADD, SUB, MUL                  16 bits, which wrap around
 *   LOW8, HIGH8, LOW16, HIGH16, LOW32, HIGH32, LOW64, HIGH64
 *                                  unpack: take turns from the lower or higher half of two vectors' 128-bit lanes
 *   PAIR(a, b)                     the numbers a, b, a, b, ...
 *   DOT(sum, x, pair)              sum + x[0] * pair[0] + x[1] * pair[1], 32 bits
 *   ADD32, SUB32, SHIFT32(x, n), ALL32(number)
 *   PACK32, PACK16                 narrower numbers, which saturate
 *   IS_LARGE(x)                    whether a number shifted to the left by PASS1_BITS is more than 16 bits
 *   MIDDLE(x)                      bytes, from signed to unsigned
 *   STORE_ROWS(x, first, second)   of 8 bytes for each block twice: one row, then the other
 *
 * One-dimensional transforms work on whole vectors: number i of vector k is element k of transform i. All intermediate
 * numbers are libjpeg-turbo's, also where they wrap around or saturate in damaged files.
 */
#include "idct.h"
#include "picture.h"

struct halves {
    V low, high;
};

TARGET INLINE struct halves dot(struct halves sum, struct halves x, V pair)
{
    return (struct halves){DOT(sum.low, x.low, pair), DOT(sum.high, x.high, pair)};
}

TARGET INLINE struct halves both(V a, V b)
{
    return (struct halves){LOW16(a, b), HIGH16(a, b)};
}

TARGET INLINE V narrow(struct halves x, int shift)
{
    return PACK32(SHIFT32(x.low, shift), SHIFT32(x.high, shift));
}

TARGET INLINE void butterfly(V x[8], int i, struct halves even, struct halves odd, int shift)
{
    const struct halves sum = {ADD32(even.low, odd.low), ADD32(even.high, odd.high)};
    const struct halves difference = {SUB32(even.low, odd.low), SUB32(even.high, odd.high)};
    x[i] = narrow(sum, shift);
    x[7 - i] = narrow(difference, shift);
}

/* One pass; where `low`, a constant, x[4] to x[7] are zero. */
TARGET INLINE void pass(V x[8], int shift, int low)
{
    const V rounding = ALL32(1 << (shift - 1)), none = ALL32(0);
    const struct halves half = {rounding, rounding}, zero = {none, none};
    struct halves even[4], odd[4];
    if (low) {
        const struct halves x02 = both(x[0], x[2]), x13 = both(x[1], x[3]);
        even[0] = dot(half, x02, PAIR(1 << CONST_BITS, F_0_541 + F_0_765));
        even[3] = dot(half, x02, PAIR(1 << CONST_BITS, -F_0_541 - F_0_765));
        even[1] = dot(half, x02, PAIR(1 << CONST_BITS, F_0_541));
        even[2] = dot(half, x02, PAIR(1 << CONST_BITS, -F_0_541));
        odd[0] = dot(zero, x13, PAIR(F_1_501 - F_0_899 + F_1_175 - F_0_390, F_1_175));
        odd[1] = dot(zero, x13, PAIR(F_1_175, F_3_072 - F_2_562 + F_1_175 - F_1_961));
        odd[2] = dot(zero, x13, PAIR(F_1_175 - F_0_390, F_1_175 - F_2_562));
        odd[3] = dot(zero, x13, PAIR(F_1_175 - F_0_899, F_1_175 - F_1_961));
    } else {
        const struct halves sum = both(none, ADD(x[0], x[4])), difference = both(none, SUB(x[0], x[4]));
        const struct halves s = {ADD32(SHIFT32(sum.low, 16 - CONST_BITS), rounding),
                                 ADD32(SHIFT32(sum.high, 16 - CONST_BITS), rounding)};
        const struct halves d = {ADD32(SHIFT32(difference.low, 16 - CONST_BITS), rounding),
                                 ADD32(SHIFT32(difference.high, 16 - CONST_BITS), rounding)};
        const struct halves x26 = both(x[2], x[6]);
        even[0] = dot(s, x26, PAIR(F_0_541 + F_0_765, F_0_541));
        even[3] = dot(s, x26, PAIR(-F_0_541 - F_0_765, -F_0_541));
        even[1] = dot(d, x26, PAIR(F_0_541, F_0_541 - F_1_847));
        even[2] = dot(d, x26, PAIR(-F_0_541, F_1_847 - F_0_541));
        const struct halves z = both(ADD(x[7], x[3]), ADD(x[5], x[1]));
        const struct halves z3 = dot(zero, z, PAIR(F_1_175 - F_1_961, F_1_175));
        const struct halves z4 = dot(zero, z, PAIR(F_1_175, F_1_175 - F_0_390));
        const struct halves x71 = both(x[7], x[1]), x53 = both(x[5], x[3]);
        odd[0] = dot(z4, x71, PAIR(-F_0_899, F_1_501 - F_0_899));
        odd[1] = dot(z3, x53, PAIR(-F_2_562, F_3_072 - F_2_562));
        odd[2] = dot(z4, x53, PAIR(F_2_053 - F_2_562, -F_2_562));
        odd[3] = dot(z3, x71, PAIR(F_0_298 - F_0_899, -F_0_899));
    }
    for (int i = 0; i < 4; i++)
        butterfly(x, i, even[i], odd[i], shift);
}

/* In each block. */
TARGET INLINE void transpose(V x[8])
{
    V a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = LOW16(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = HIGH16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[4 * i] = LOW32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = HIGH32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = LOW32(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = HIGH32(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        x[2 * i] = LOW64(b[i], b[i + 4]);
        x[2 * i + 1] = HIGH64(b[i], b[i + 4]);
    }
}

/* Vector k has column k of the blocks. */
TARGET INLINE void store_columns(const V x[8], uint8_t *out, size_t stride)
{
    const V a = PACK16(x[0], x[4]), b = PACK16(x[1], x[5]), c = PACK16(x[2], x[6]), d = PACK16(x[3], x[7]);
    const V low_ab = LOW8(a, b), high_ab = HIGH8(a, b), low_cd = LOW8(c, d), high_cd = HIGH8(c, d);
    const V first[2] = {LOW16(low_ab, low_cd), HIGH16(low_ab, low_cd)};
    const V last[2] = {LOW16(high_ab, high_cd), HIGH16(high_ab, high_cd)};
    for (int i = 0; i < 2; i++, out += 4 * stride) {
        STORE_ROWS(MIDDLE(LOW32(first[i], last[i])), out, out + stride);
        STORE_ROWS(MIDDLE(HIGH32(first[i], last[i])), out + 2 * stride, out + 3 * stride);
    }
}

/* Of coefficients, row by row. `low`, a constant: those beyond the first four rows and columns are zero. */
TARGET INLINE void transform(V x[8], uint8_t *out, size_t stride, int low)
{
    pass(x, SHIFT_1, low);
    transpose(x);
    pass(x, SHIFT_2, low);
    store_columns(x, out, stride);
}

TARGET INLINE void transform_blocks(int16_t *group, const int16_t *quant, uint8_t *out, size_t stride, int low)
{
    V x[8];
    for (int k = 0; k < (low ? 4 : 8); k++) {
        x[k] = MUL(LOAD(group + k * GROUP * 8), ROW(quant + 8 * k));
        STORE_ZERO(group + k * GROUP * 8);
    }
    for (int k = 4; k < 8 && low; k++)
        x[k] = ALL32(0);
    transform(x, out, stride, low);
}

TARGET INLINE void transform_group(int16_t *group, const int16_t *quant, uint8_t *out, size_t stride,
                                   enum extent extent)
{
    /* Only in damaged files is the first row so large that libjpeg-turbo's result depends on whether it is alone. */
    int is_large = 0;
    for (int i = 0; i < GROUP; i += BLOCKS)
        is_large |= IS_LARGE(MUL(LOAD(group + 8 * i), ROW(quant)));
    if (__builtin_expect(is_large, 0)) {
        idct_plain(group, quant, out, stride);
        return;
    }
    for (int i = 0; i < GROUP; i += BLOCKS)
        if (extent == ALL)
            transform_blocks(group + 8 * i, quant, out + 8 * i, stride, 0);
        else
            transform_blocks(group + 8 * i, quant, out + 8 * i, stride, 1);
}
