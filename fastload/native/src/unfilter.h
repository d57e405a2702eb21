/* Undoes the filters of a PNG file's rows. */
#ifndef FASTLOAD_UNFILTER_H
#define FASTLOAD_UNFILTER_H

#include "fastload.h"

enum png_filter { PNG_NONE = 0, PNG_SUB = 1, PNG_UP = 2, PNG_AVERAGE = 3, PNG_PAETH = 4 };

/* Undoes, in place, `num` rows that lie one behind the other: each a byte that names its filter, and stride - 1 others, of
 * which the first `bytes` are wanted. The row above the first must be undone, if the first one's filter looks at it; and
 * there must be memory for it. `pixel`: bytes of a pixel, at least one. Reads 8 bytes behind the last row. */
void unfilter_rows(uint8_t *rows, size_t stride, int num, size_t bytes, int pixel, int level);

#endif
