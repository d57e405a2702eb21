/* See scratch.h. */
#include "scratch.h"

#include <stdlib.h>
#include <string.h>

/* Blocks above this are given back after the call: one large image shall not cost every thread its memory for good. */
#define KEPT ((size_t)16 << 20)

void *reserve(struct block *block, size_t size)
{
#if defined(__SANITIZE_ADDRESS__) || defined(FASTLOAD_NEW_MEMORY)
    /* No more than was asked for, and new each time: so that no use of what is not there goes unseen. */
    size = (size + 63) / 64 * 64;
#else
    if (block->size >= size && (block->size <= KEPT || size > KEPT))
        return block->data;
    size = (size + size / 4 + 63) / 64 * 64;
#endif
    free(block->data);
    block->size = 0;
    block->data = aligned_alloc(64, size);
    if (block->data)
        block->size = size;
    return block->data;
}

int grow(struct block *block, size_t used)
{
    void *const data = aligned_alloc(64, 2 * block->size);
    if (!data)
        return 0;
    memcpy(data, block->data, used);
    free(block->data);
    block->data = data;
    block->size *= 2;
    return 1;
}

FASTLOAD_EXPORT struct fastload_scratch *fastload_scratch_new(void)
{
    return calloc(1, sizeof(struct fastload_scratch));
}

FASTLOAD_EXPORT void fastload_scratch_free(struct fastload_scratch *scratch)
{
    if (!scratch)
        return;
    struct block *all[] = {&scratch->axes[0], &scratch->axes[1], &scratch->tables,  &scratch->rows, &scratch->result,
                           &scratch->pixels,  &scratch->planes,  &scratch->entropy,
                           &scratch->restarts, &scratch->kept,    &scratch->parts,  &scratch->codes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->data);
    free(scratch);
}
