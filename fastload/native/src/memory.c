/* Memory that is about to be written for the first time. */
#define _DEFAULT_SOURCE /* for madvise */
#include "fastload.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

/* Ask that memory be made of large pages, where the system leaves that to programs: the whole pages in it that have
 * not been touched yet. It is advice: where there are none, nothing happens. */
FASTLOAD_EXPORT void fastload_large_pages(void *start, int64_t bytes)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)start + page - 1) / page * page, end = ((uintptr_t)start + (uintptr_t)bytes) / page * page;
    if (first < end)
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
    (void)start;
    (void)bytes;
#endif
}
