/* Which vector instructions are used: by the resize, turning, and where a scan is read. */
#ifndef PREP_VECTORS_H
#define PREP_VECTORS_H

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 9)
#define PREP_WIDE /* AVX-512 is compiled for */
#endif

/* native/compiled.py has the same order. AVX512 stands for all that is used of it: F, BW, VL, VBMI, VBMI2, VNNI. */
enum vectors { PLAIN_C, AVX2, AVX512 };

/* The best of them that this CPU has and that is allowed. */
enum vectors prep_vectors(void);

/* What else this CPU has, and the kernel keeps the registers of. PCLMUL stands for SSE4.1, BMI2 for BMI, too. */
enum { CPU_LOOKED = 1, CPU_PCLMUL = 2, CPU_BMI2 = 4, CPU_AVX2 = 8, CPU_AVX512 = 16, CPU_VPCLMUL = 32 };
unsigned prep_cpu(void);

#endif
