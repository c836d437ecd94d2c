/* Whether AVX-512 is used: by the resize (resize_wide.c) and where a scan is read (entropy.c). */
#include "wide.h"

static int wished = 1;

int prep_wide_serves(void) {
#ifdef PREP_WIDE
    return wished && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("avx512vnni");
#else
    (void)wished;
    return 0;
#endif
}

/* Say whether AVX-512 is to be used from now on, where it can. Returns whether it will be. */
int prep_use_wide(int wish) {
    wished = wish;
    return prep_wide_serves();
}
