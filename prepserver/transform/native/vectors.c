/* Which vector instructions are used. */
#include "vectors.h"

static int allowed = AVX512;

enum vectors prep_vectors(void) {
#if defined(__x86_64__)
    if (allowed >= AVX2 && __builtin_cpu_supports("avx2")) {
#ifdef PREP_WIDE
        if (allowed >= AVX512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
            __builtin_cpu_supports("avx512vnni"))
            return AVX512;
#endif
        return AVX2;
    }
#endif
    return PLAIN_C;
}

/* Use nothing better than `best` from now on. Returns what is used then. */
int prep_use_vectors(int best) {
    allowed = best;
    return (int)prep_vectors();
}
