/* Preloaded, it holds a thread of OpenCV's pool for ever where the thread is about to sleep and has its lock, and writes
 * a byte to the descriptor HELD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int called_by_opencv(const void *caller)
{
    Dl_info found;
    if (!dladdr(caller, &found) || !found.dli_fname)
        return 0;
    const char *slash = strrchr(found.dli_fname, '/');
    return strncmp(slash ? slash + 1 : found.dli_fname, "cv2.", 4) == 0;
}

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    int (*wait)(pthread_cond_t *, pthread_mutex_t *);
    /* glibc has an older function of this name too, of x86-64's first years, which plain dlsym() may find. */
    void *found = dlvsym(RTLD_NEXT, "pthread_cond_wait", "GLIBC_2.3.2");
    if (!found)
        found = dlsym(RTLD_NEXT, "pthread_cond_wait");
    memcpy(&wait, &found, sizeof wait);
    if (called_by_opencv(__builtin_return_address(0)) && write(atoi(getenv("HELD")), "", 1) == 1)
        for (;;)
            pause();
    return wait(condition, mutex);
}
