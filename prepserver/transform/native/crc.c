/* CRC-32 (zlib's) of a record or an index, ten times as fast as zlib: 100 kB in some microseconds.
 *
 * x86-64: 64 bytes at a time are folded by carry-less multiplication, or 256 with AVX-512 (V. Gopal et al., "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ Instruction", 2009; its constants for the bit-reflected polynomial
 * 0x104C11DB7, where a fold by n bits has x^(n+32) and x^(n-32)).
 * aarch64: the CPU has an instruction for it. prepserver/checksum.py compares the result with zlib's before it uses it.
 */
#include "vectors.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* For what is too short for the ways below. */
static uint32_t bit_by_bit(uint32_t crc, const uint8_t *data, size_t size) {
    while (size--) {
        crc ^= *data++;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0xEDB88320 & -(crc & 1));
    }
    return crc;
}

#if defined(__x86_64__)
#define FOLDED __attribute__((target("sse4.1,pclmul")))

FOLDED static inline __m128i load(const uint8_t *data) {
    return _mm_loadu_si128((const __m128i *)data);
}

/* Move `part` on by as many bits as `keys` stand for, onto `next`. */
FOLDED static inline __m128i fold(__m128i part, __m128i keys, __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(part, keys, 0x00), high = _mm_clmulepi64_si128(part, keys, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

#ifdef PREP_WIDE
#define FOLDED_WIDE __attribute__((target("avx512f,vpclmulqdq")))

FOLDED_WIDE static inline __m512i fold_wide(__m512i part, __m512i keys, const void *next) {
    const __m512i low = _mm512_clmulepi64_epi128(part, keys, 0x00), high = _mm512_clmulepi64_epi128(part, keys, 0x11);
    return _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(next), 0x96); /* a ^ b ^ c */
}

/* Fold `size` bytes, a multiple of 256, into 64. */
FOLDED_WIDE static void shorten(uint8_t out[64], uint32_t crc, const uint8_t *data, size_t size) {
    const __m512i by_2048 = _mm512_set4_epi64(0x1322D1430, 0x11542778A, 0x1322D1430, 0x11542778A);
    const __m512i by_512 = _mm512_set4_epi64(0x1C6E41596, 0x154442BD4, 0x1C6E41596, 0x154442BD4);
    const __m512i begin = _mm512_inserti32x4(_mm512_setzero_si512(), _mm_cvtsi32_si128((int)crc), 0);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), begin);
    __m512i b = _mm512_loadu_si512(data + 64), c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
    for (data += 256, size -= 256; size; data += 256, size -= 256) {
        a = fold_wide(a, by_2048, data);
        b = fold_wide(b, by_2048, data + 64);
        c = fold_wide(c, by_2048, data + 128);
        d = fold_wide(d, by_2048, data + 192);
    }
    b = fold_wide(a, by_512, &b);
    c = fold_wide(b, by_512, &c);
    _mm512_storeu_si512(out, fold_wide(c, by_512, &d));
}
#endif

/* Of 64 bytes or more, a multiple of 16. */
FOLDED static uint32_t folded(uint32_t crc, const uint8_t *data, size_t size) {
    const __m128i by_512 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4), by_128 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x163CD6124), barrett = _mm_set_epi64x(0x1F7011641, 0x1DB710641);
    const __m128i low_32 = _mm_set_epi32(0, -1, 0, -1);
    const uint8_t *first = data;
#ifdef PREP_WIDE
    uint8_t shorter[64];
    if (size >= 512 && prep_vectors() == AVX512 && prep_cpu() & CPU_VPCLMUL) {
        const size_t most = size & ~(size_t)255;
        shorten(shorter, crc, data, most);
        first = shorter;
        crc = 0;
        data += most - 64;
        size -= most - 64;
    }
#endif
    __m128i a = _mm_xor_si128(load(first), _mm_cvtsi32_si128((int)crc));
    __m128i b = load(first + 16), c = load(first + 32), d = load(first + 48);
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
        a = fold(a, by_512, load(data));
        b = fold(b, by_512, load(data + 16));
        c = fold(c, by_512, load(data + 32));
        d = fold(d, by_512, load(data + 48));
    }
    a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
    for (; size; data += 16, size -= 16)
        a = fold(a, by_128, load(data));
    /* 128 bits to 96, to 64, and by Barrett's reduction to 32. */
    a = _mm_xor_si128(_mm_clmulepi64_si128(a, by_128, 0x10), _mm_srli_si128(a, 8));
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_64, 0x00), _mm_srli_si128(a, 4));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low_32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}
#endif

/* Whether this CPU has the instructions for the code below. */
int prep_crc32_serves(void) {
#if defined(__x86_64__)
    return (prep_cpu() & CPU_PCLMUL) != 0;
#elif defined(__aarch64__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    return 0;
#endif
}

/* The CRC-32 of the `size` bytes from `at` on, with `before` that of what they follow. Only where it serves. */
uint32_t prep_crc32(const uint8_t *data, size_t at, size_t size, uint32_t before) {
    uint32_t crc = ~before;
    data += at;
#if defined(__x86_64__)
    if (size >= 64) {
        const size_t most = size & ~(size_t)15;
        crc = folded(crc, data, most);
        data += most;
        size -= most;
    }
#elif defined(__aarch64__)
    for (uint64_t word; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, sizeof word);
        __asm__(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
#endif
    return ~bit_by_bit(crc, data, size);
}
