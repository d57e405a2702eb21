/* See inflate.h.
 *
 * One loop serves all of a block: the memory's padding takes what the last steps read and write beyond the ends, and the
 * ends are looked at once in each round.
 *
 * struct tables has for each of the next bits of the stream an entry:
 *
 *   bits 0 to 5     how many bits it takes, extra bits included
 *   bits 8 to 23    a literal, or two; the base of a length or a distance; a code length; where a second table begins
 *   bits 24 and 25  how many literals
 *   bits 26 to 29   how many of the bits are the code
 *   bits 30 and 31  its kind
 */
#include "inflate.h"

#include <string.h>

enum { CODE_BITS = 12, DISTANCE_BITS = 9, LENGTH_BITS = 7, MOST_BITS = 15 };
enum { NUM_CODES = 288, NUM_DISTANCES = 32, NUM_LENGTHS = 19, END_OF_BLOCK = 256 };

#define LITERAL (1u << 31)
#define OTHER (1u << 30)       /* neither a literal nor a number: no code, unless one of the following is set too */
#define END (OTHER | 1u << 24)
#define SECOND (OTHER | 1u << 25)
#define TWO (1u << 24)
#define COUNT(entry) ((entry) >> 24 & 3)
#define TAKEN(entry) ((entry)&63)
#define VALUE(entry) ((entry) >> 8 & 0xFFFF)
#define CODE(entry) ((entry) >> 26 & 15)

/* A second table has an entry for all bits that a code may have more; at least two codes share it. */
struct tables {
    uint32_t codes[(1 << CODE_BITS) + NUM_CODES / 2 * (1 << (MOST_BITS - CODE_BITS))];
    uint32_t distances[(1 << DISTANCE_BITS) + NUM_DISTANCES / 2 * (1 << (MOST_BITS - DISTANCE_BITS))];
    uint32_t lengths[1 << LENGTH_BITS];
    /* What symbols stand for: entries without codes. */
    uint32_t code_symbols[NUM_CODES], distance_symbols[NUM_DISTANCES], length_symbols[NUM_LENGTHS];
};

struct reader {
    const uint8_t *in, *end; /* the next byte to load; behind the last of the blocks */
    uint64_t bits;
    unsigned count; /* of bits that are valid */
};

/* Distances above the window get no entry: 2 * window_bits of them lie in it. */
static void name_symbols(struct tables *t, int window_bits)
{
    for (uint32_t i = 0; i < NUM_CODES; i++)
        t->code_symbols[i] = i < 256 ? LITERAL | 1u << 24 | i << 8 : i == END_OF_BLOCK ? END : OTHER;
    for (uint32_t i = 0, base = 3; i < 28; i++) {
        const uint32_t extra = i < 8 ? 0 : (i - 4) / 4;
        t->code_symbols[257 + i] = base << 8 | extra;
        base += 1u << extra;
    }
    t->code_symbols[285] = 258 << 8;
    for (uint32_t i = 0, base = 1; i < NUM_DISTANCES; i++) {
        const uint32_t extra = i < 4 ? 0 : (i - 2) / 2;
        t->distance_symbols[i] = i < 2 * (uint32_t)window_bits ? base << 8 | extra : OTHER;
        base += 1u << extra;
    }
    for (uint32_t i = 0; i < NUM_LENGTHS; i++)
        t->length_symbols[i] = i << 8;
}

/* Makes the table of a code of `num` symbols, each of so many bits; 0: it has none. `bits`: of the first table. Returns 0
 * where zlib refuses the code: it is neither complete, nor of a single bit at most. */
static int make_table(uint32_t *table, int bits, const uint32_t *symbols, const uint8_t *lengths, int num)
{
    int count[MOST_BITS + 1] = {0}, place[MOST_BITS + 2];
    uint16_t sorted[NUM_CODES];
    for (int i = 0; i < num; i++)
        count[lengths[i]]++;
    place[1] = 0;
    int left = 1;
    for (int length = 1; length <= MOST_BITS; length++) {
        place[length + 1] = place[length] + count[length];
        left = 2 * left - count[length];
        if (left < 0)
            return 0;
    }
    const int used = place[MOST_BITS + 1];
    if (left > 0 && used > count[1])
        return 0;
    for (int i = 0; i < num; i++)
        if (lengths[i])
            sorted[place[lengths[i]]++] = (uint16_t)i;
    uint32_t code = 0, *second = table; /* its bits as they come: the first is the lowest */
    size_t next = (size_t)1 << bits, prefix = next;
    table[0] = OTHER | 1;
    for (int length = 1, i = 0; length <= MOST_BITS; length++) {
        if (length <= bits)
            memcpy(table + ((size_t)1 << (length - 1)), table, sizeof *table << (length - 1));
        for (int rest = count[length]; rest; rest--, i++) {
            const uint32_t entry = symbols[sorted[i]] + (uint32_t)length + ((uint32_t)length << 26);
            if (length <= bits)
                table[code] = entry;
            else {
                if (prefix != (code & ((1u << bits) - 1))) {
                    prefix = code & ((1u << bits) - 1);
                    table[prefix] = SECOND | (uint32_t)next << 8;
                    second = table + next;
                    next += (size_t)1 << (MOST_BITS - bits);
                }
                for (uint32_t k = code >> bits; k < 1u << (MOST_BITS - bits); k += 1u << (length - bits))
                    second[k] = entry;
            }
            /* One more, counted from the last bit; behind the last code there is none, and nothing is made of it. */
            const uint32_t zeros = ~code & ((1u << length) - 1);
            const uint32_t bit = zeros ? 1u << (31 - __builtin_clz(zeros)) : 1;
            code = (code & (bit - 1)) | bit;
        }
    }
    if (left > 0)
        table[1] = OTHER | 1;
    for (size_t i = 2; left > 0 && i < (size_t)1 << bits; i += 2)
        memcpy(table + i, table, 2 * sizeof *table);
    return 1;
}

/* Adds to each literal the one that follows, where the bits looked at have all of its code. */
static void pair_up(uint32_t *table)
{
    /* From the last on: what is looked up is not paired yet. */
    for (uint32_t i = 1 << CODE_BITS; i-- > 0;) {
        const uint32_t entry = table[i], follows = table[i >> TAKEN(entry)];
        const int paired = (entry & follows & LITERAL) && TAKEN(entry) + TAKEN(follows) <= CODE_BITS;
        table[i] = paired ? entry + ((follows & 0xFF00) << 8) + TWO + TAKEN(follows) : entry;
    }
}

INLINE uint64_t load64(const uint8_t *from)
{
    uint64_t x;
    memcpy(&x, from, 8);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

/* To 56 bits and more. Bits above the valid ones may be set already, to what they will be. */
INLINE void refill(struct reader *r)
{
    r->bits |= load64(r->in) << r->count;
    r->in += (63 - r->count) >> 3;
    r->count |= 56;
}

INLINE unsigned take(struct reader *r, unsigned num)
{
    const unsigned found = (unsigned)(r->bits & (((uint64_t)1 << num) - 1));
    r->bits >>= num;
    r->count -= num;
    return found;
}

/* Of an entry that is not OTHER, with its extra bits. */
INLINE unsigned take_number(struct reader *r, uint32_t entry)
{
    const uint64_t all = r->bits & (((uint64_t)1 << TAKEN(entry)) - 1);
    r->bits >>= TAKEN(entry);
    r->count -= TAKEN(entry);
    return VALUE(entry) + (unsigned)(all >> CODE(entry));
}

/* No more than the loaded bits lie behind the end. */
INLINE int is_beyond(const struct reader *r)
{
    return r->in > r->end + 8;
}

INLINE void copy16(uint8_t *to, const uint8_t *from)
{
    uint64_t x[2];
    memcpy(x, from, 16);
    memcpy(to, x, 16);
}

/* May write 32 bytes behind the match, and 64 in all. `distance` bytes before `out` the copy begins. */
INLINE void copy_match(uint8_t *out, size_t distance, size_t length)
{
    const uint8_t *from = out - distance;
    uint8_t *const end = out + length;
    /* What is there repeats itself: twice as much of it each time. */
    while (distance < 16) {
        copy16(out, from);
        out += distance;
        distance *= 2;
    }
    do {
        copy16(out, from);
        copy16(out + 16, from + 16);
        from += 32;
        out += 32;
    } while (out < end);
}

/* Returns behind the last byte written, or NULL. `begin`: of all output, `last`: behind the room. */
INLINE uint8_t *inflate_codes(struct reader *reader, const struct tables *t, const uint8_t *begin, uint8_t *out,
                              const uint8_t *last)
{
    struct reader r = *reader;
#define LOOK_UP (t->codes[r.bits & ((1 << CODE_BITS) - 1)])
#define PUT_LITERALS                                                                                                   \
    do {                                                                                                               \
        r.bits >>= TAKEN(entry);                                                                                       \
        r.count -= TAKEN(entry);                                                                                       \
        out[0] = (uint8_t)(entry >> 8);                                                                                \
        out[1] = (uint8_t)(entry >> 16);                                                                               \
        out += COUNT(entry);                                                                                           \
    } while (0)
    for (;;) {
        if (out > last || is_beyond(&r))
            return NULL;
        refill(&r);
        uint32_t entry = LOOK_UP;
        /* Three of up to 12 bits leave 20 of 56: enough for a length. */
        if (entry & LITERAL) {
            PUT_LITERALS;
            entry = LOOK_UP;
            if (entry & LITERAL) {
                PUT_LITERALS;
                entry = LOOK_UP;
                if (entry & LITERAL) {
                    PUT_LITERALS;
                    entry = LOOK_UP;
                    if (entry & LITERAL) {
                        PUT_LITERALS;
                        continue;
                    }
                }
            }
        }
        if (entry & OTHER) {
            if ((entry & SECOND) == SECOND)
                entry = t->codes[VALUE(entry) + (r.bits >> CODE_BITS & ((1 << (MOST_BITS - CODE_BITS)) - 1))];
            if (entry & LITERAL) {
                PUT_LITERALS;
                continue;
            }
            if (entry & OTHER) {
                if ((entry & END) != END)
                    return NULL;
                r.bits >>= TAKEN(entry);
                r.count -= TAKEN(entry);
                *reader = r;
                return out > last ? NULL : out;
            }
        }
        const unsigned length = take_number(&r, entry);
        refill(&r);
        entry = t->distances[r.bits & ((1 << DISTANCE_BITS) - 1)];
        if (entry & OTHER) {
            if ((entry & SECOND) == SECOND)
                entry = t->distances[VALUE(entry) +
                                     (r.bits >> DISTANCE_BITS & ((1 << (MOST_BITS - DISTANCE_BITS)) - 1))];
            if (entry & OTHER)
                return NULL;
        }
        const unsigned distance = take_number(&r, entry);
        if (distance > (size_t)(out - begin))
            return NULL;
        copy_match(out, distance, length);
        out += length;
    }
}

static uint8_t *codes_plain(struct reader *r, const struct tables *t, const uint8_t *begin, uint8_t *out,
                            const uint8_t *last)
{
    return inflate_codes(r, t, begin, out, last);
}

#ifdef FASTLOAD_X86
/* For its shifts by any number of bits. */
FASTLOAD_TARGET_AVX2 static uint8_t *codes_avx2(struct reader *r, const struct tables *t, const uint8_t *begin,
                                                uint8_t *out, const uint8_t *last)
{
    return inflate_codes(r, t, begin, out, last);
}
#endif

/* Returns 0 where the codes are not as they must be. */
static int read_codes(struct reader *r, struct tables *t)
{
    static const uint8_t order[NUM_LENGTHS] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t of_lengths[NUM_LENGTHS] = {0}, lengths[NUM_CODES + NUM_DISTANCES] = {0};
    const int codes = (int)take(r, 5) + 257, distances = (int)take(r, 5) + 1, num = (int)take(r, 4) + 4;
    if (codes > 286 || distances > 30)
        return 0;
    for (int i = 0; i < num; i++) {
        refill(r);
        of_lengths[order[i]] = (uint8_t)take(r, 3);
    }
    if (!make_table(t->lengths, LENGTH_BITS, t->length_symbols, of_lengths, NUM_LENGTHS))
        return 0;
    for (int i = 0; i < codes + distances;) {
        if (is_beyond(r))
            return 0;
        refill(r);
        const uint32_t entry = t->lengths[r->bits & ((1 << LENGTH_BITS) - 1)];
        if (entry & OTHER)
            return 0;
        const unsigned symbol = take_number(r, entry);
        if (symbol < 16) {
            lengths[i++] = (uint8_t)symbol;
            continue;
        }
        const int repeats = symbol == 16 ? 3 + (int)take(r, 2) : symbol == 17 ? 3 + (int)take(r, 3) : 11 + (int)take(r, 7);
        if (repeats > codes + distances - i || (symbol == 16 && !i))
            return 0;
        memset(lengths + i, symbol == 16 ? lengths[i - 1] : 0, (size_t)repeats);
        i += repeats;
    }
    return lengths[END_OF_BLOCK] && make_table(t->codes, CODE_BITS, t->code_symbols, lengths, codes) &&
           make_table(t->distances, DISTANCE_BITS, t->distance_symbols, lengths + codes, distances);
}

static void make_fixed_codes(struct tables *t)
{
    uint8_t lengths[NUM_CODES];
    for (int i = 0; i < NUM_CODES; i++)
        lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    make_table(t->codes, CODE_BITS, t->code_symbols, lengths, NUM_CODES);
    memset(lengths, 5, NUM_DISTANCES);
    make_table(t->distances, DISTANCE_BITS, t->distance_symbols, lengths, NUM_DISTANCES);
}

/* Gives back what was loaded and not taken, from a whole byte on. */
static void return_bytes(struct reader *r)
{
    r->in -= r->count >> 3;
    r->bits = 0;
    r->count = 0;
}

static uint8_t *copy_stored(struct reader *r, uint8_t *out, const uint8_t *last)
{
    return_bytes(r);
    if (r->end - r->in < 4)
        return NULL;
    const unsigned length = r->in[0] | (unsigned)r->in[1] << 8, check = r->in[2] | (unsigned)r->in[3] << 8;
    r->in += 4;
    if (length != (check ^ 0xFFFF) || length > (size_t)(r->end - r->in) || length > (size_t)(last - out))
        return NULL;
    memcpy(out, r->in, length);
    r->in += length;
    return out + length;
}

int64_t inflate_stream(const uint8_t *in, size_t length, uint8_t *out, size_t room, int level)
{
    if (length < 6 || (in[0] & 15) != 8 || in[0] >> 4 > 7 || (in[0] << 8 | in[1]) % 31 || in[1] & 32)
        return -1;
    struct tables tables;
    name_symbols(&tables, 8 + (in[0] >> 4));
    struct reader r = {in + 2, in + length - 4, 0, 0};
    uint8_t *const begin = out, *const last = out + room;
    uint32_t sum = 1;
    for (int is_final = 0; !is_final;) {
        if (is_beyond(&r))
            return -1;
        refill(&r);
        is_final = (int)take(&r, 1);
        uint8_t *const before = out;
        switch (take(&r, 2)) {
        case 0:
            out = copy_stored(&r, out, last);
            break;
        case 1:
            make_fixed_codes(&tables);
            goto coded;
        case 2:
            if (!read_codes(&r, &tables))
                return -1;
        coded:
            pair_up(tables.codes);
#ifdef FASTLOAD_X86
            if (level != FASTLOAD_PLAIN)
                out = codes_avx2(&r, &tables, begin, out, last);
            else
#endif
                out = codes_plain(&r, &tables, begin, out, last);
            break;
        default:
            return -1;
        }
        if (!out)
            return -1;
        sum = adler32_of(sum, before, (size_t)(out - before), level);
    }
    return_bytes(&r);
    if (r.in != r.end)
        return -1;
    const uint32_t said = (uint32_t)r.in[0] << 24 | (uint32_t)r.in[1] << 16 | (uint32_t)r.in[2] << 8 | r.in[3];
    return said == sum ? out - begin : -1;
}
