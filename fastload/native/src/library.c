/* What this build of the library is. */
#include "fastload.h"
#include "jpeg_header.h"

FASTLOAD_EXPORT int fastload_abi(void)
{
    return FASTLOAD_ABI;
}

/* Which parts there are: a sum of FASTLOAD_HAS_... */
FASTLOAD_EXPORT int fastload_features(void)
{
#ifdef FASTLOAD_WITH_JPEG
    return jpeg_works() ? FASTLOAD_HAS_JPEG : 0;
#else
    return 0;
#endif
}

/* The level (enum fastload_level) that kernels use on this processor where they are not asked for a lower one. */
FASTLOAD_EXPORT int fastload_processor_level(void)
{
    return fastload_level(FASTLOAD_BEST);
}
