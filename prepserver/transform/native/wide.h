/* AVX-512: whether it is compiled for, and used. */
#ifndef PREP_WIDE_H
#define PREP_WIDE_H

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 9)
#define PREP_WIDE
#endif

/* Whether this CPU has all that is used of it (F, BW, VL, VBMI, VBMI2, VNNI), and it was not switched off. */
int prep_wide_serves(void);

#endif
