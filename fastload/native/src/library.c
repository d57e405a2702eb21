/* What this build of the library is. */
#include "fastload.h"

FASTLOAD_EXPORT int fastload_abi(void)
{
    return FASTLOAD_ABI;
}

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)
#ifdef __clang__
#define COMPILER "clang " VERSION(__clang_major__, __clang_minor__, __clang_patchlevel__)
#elif defined(__GNUC__)
#define COMPILER "gcc " VERSION(__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__)
#else
#define COMPILER "an unknown compiler"
#endif

/* The compiler that built it, and the package that this came in: "clang 22.1.8 of ziglang 0.17.1". */
FASTLOAD_EXPORT const char *fastload_compiler(void)
{
#ifdef FASTLOAD_COMPILER_PACKAGE
    return COMPILER " of " FASTLOAD_COMPILER_PACKAGE;
#else
    return COMPILER;
#endif
}

/* The level (enum fastload_level) that kernels use. */
FASTLOAD_EXPORT int fastload_processor_level(void)
{
    return fastload_level;
}
