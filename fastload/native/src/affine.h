/* What the two files of affine transforms share. */
#ifndef FASTLOAD_AFFINE_H
#define FASTLOAD_AFFINE_H

#include "fastload.h"

#include <math.h>

/* Whether a result's corner is taken from less than 32768 pixels away, where Pillow computes in fixed point. */
static inline int affine_corner_fits(const double a[6], int x, int y)
{
    return fabs(x * a[0] + y * a[1] + a[2]) < 32768.0 && fabs(x * a[3] + y * a[4] + a[5]) < 32768.0;
}

/* Whether an affine transform is one that this library makes. */
static inline int affine_is_known(int height, int width, int channels, int rows, int columns, const double a[6])
{
    if ((channels != 1 && channels != 3) || height < 1 || width < 1 || rows < 1 || columns < 1)
        return 0;
    return affine_corner_fits(a, 0, 0) && affine_corner_fits(a, columns, rows) && affine_corner_fits(a, 0, rows) &&
           affine_corner_fits(a, columns, 0);
}

#endif
