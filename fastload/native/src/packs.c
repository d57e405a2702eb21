/* Packs of samples by best fit: what fastload/sampling/packs.py defines; that file is the reference. */
#include "fastload.h"

/* Which free spaces some open pack has: a bit for each, and a bit for each word of these that is not 0. */
struct spaces {
    uint64_t *bits, *words;
    int64_t num_words; /* of `words` */
};

static inline void add(struct spaces *spaces, int64_t space)
{
    spaces->bits[space / 64] |= UINT64_C(1) << space % 64;
    spaces->words[space / 4096] |= UINT64_C(1) << space / 64 % 64;
}

static inline void take_away(struct spaces *spaces, int64_t space)
{
    int64_t word = space / 64;
    spaces->bits[word] &= ~(UINT64_C(1) << space % 64);
    if (!spaces->bits[word])
        spaces->words[word / 64] &= ~(UINT64_C(1) << word % 64);
}

/* The least space of at least so much, or -1. */
static inline int64_t least_from(const struct spaces *spaces, int64_t space)
{
    int64_t word = space / 64, group = word / 64;
    uint64_t found = spaces->bits[word] & UINT64_MAX << space % 64;
    if (found)
        return word * 64 + __builtin_ctzll(found);
    found = spaces->words[group] & (word % 64 == 63 ? 0 : UINT64_MAX << (word % 64 + 1));
    while (!found) {
        if (++group == spaces->num_words)
            return -1;
        found = spaces->words[group];
    }
    word = group * 64 + __builtin_ctzll(found);
    return word * 64 + __builtin_ctzll(spaces->bits[word]);
}

/* Put the number of its pack in the place of each length; return the number of packs.
 *
 * lengths: [num], each in 1..room. most: samples of a pack. bits: [room / 64 + room / 4096 + 2], all 0.
 * links: [room + 1 + 2 * num], anything.
 */
FASTLOAD_EXPORT int64_t fastload_best_fit(int32_t *lengths, int64_t num, int64_t room, int64_t most, uint64_t *bits,
                                          int32_t *links)
{
    struct spaces spaces = {bits, bits + room / 64 + 1, room / 4096 + 1};
    /* The open packs of each space are a stack: the last one of it, and below each pack the one before. */
    int32_t *last = links, *below = links + room + 1, *count = below + num;
    int64_t num_packs = 0;
    for (int64_t sample = 0; sample < num; sample++) {
        int64_t length = lengths[sample], space = least_from(&spaces, length);
        int32_t pack;
        if (space < 0) {
            pack = (int32_t)num_packs++;
            count[pack] = 0;
            space = room;
        } else {
            pack = last[space];
            last[space] = below[pack];
            if (last[space] < 0)
                take_away(&spaces, space);
        }
        lengths[sample] = pack;
        space -= length;
        if (++count[pack] < most && space > 0) {
            below[pack] = bits[space / 64] >> space % 64 & 1 ? last[space] : -1;
            last[space] = pack;
            add(&spaces, space);
        }
    }
    return num_packs;
}
