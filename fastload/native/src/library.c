/* What this build of the library is. */
#include "fastload.h"

FASTLOAD_EXPORT int fastload_abi(void)
{
    return FASTLOAD_ABI;
}

/* The level (enum fastload_level) that kernels use on this processor where they are not asked for a lower one. */
FASTLOAD_EXPORT int fastload_processor_level(void)
{
    return fastload_level(FASTLOAD_BEST);
}
