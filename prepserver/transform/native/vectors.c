/* Which vector instructions are used. */
#include "vectors.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* The bits of a register by which the CPU tells what it has. */
static int all(unsigned found, unsigned wanted) { return (found & wanted) == wanted; }

/* Compilers bring a function for this, too, but that of `zig cc`, which makes the wheels, finds nothing. */
static unsigned look(void) {
    unsigned a, b, c, d, b7 = 0, c7 = 0, d7, found = 0, saved = 0, high;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    __get_cpuid_count(7, 0, &a, &b7, &c7, &d7);
    if (c & bit_OSXSAVE) /* which registers the kernel saves */
        __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (all(c, bit_PCLMUL | bit_SSE4_1))
        found |= CPU_PCLMUL;
    if (all(b7, bit_BMI | bit_BMI2))
        found |= CPU_BMI2;
    if (all(saved, 0x6) && all(c, bit_AVX) && all(b7, bit_AVX2))
        found |= CPU_AVX2;
    if (all(saved, 0xe6) && all(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL)) {
        if (all(c7, bit_AVX512VBMI | bit_AVX512VBMI2 | bit_AVX512VNNI))
            found |= CPU_AVX512;
        if (all(c7, bit_VPCLMULQDQ))
            found |= CPU_VPCLMUL;
    }
    return found;
}
#endif

unsigned prep_cpu(void) {
#if defined(__x86_64__)
    static unsigned known; /* threads that look at the same time find the same */
    unsigned found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!found) {
        found = look() | CPU_LOOKED;
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found;
#else
    return CPU_LOOKED;
#endif
}

static int allowed = AVX512;

enum vectors prep_vectors(void) {
    if (allowed < AVX2 || !(prep_cpu() & CPU_AVX2))
        return PLAIN_C;
#ifdef PREP_WIDE
    if (allowed >= AVX512 && prep_cpu() & CPU_AVX512)
        return AVX512;
#endif
    return AVX2;
}

/* Use nothing better than `best` from now on. Returns what is used then. */
int prep_use_vectors(int best) {
    allowed = best;
    return (int)prep_vectors();
}
