/* libjpeg-turbo's own header (libjpeg/), for the ABI of libjpeg 6b: the one that Pillow's wheels hold (native/__init__.py).
 * It is copied from release 2.1.5 so that a compiler is all that a build needs; no release since has changed this ABI. */
#ifndef PREP_TURBO_H
#define PREP_TURBO_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What jconfig.h of a build would say; the code of libjpeg itself comes from Pillow. */
#define JCONFIG_INCLUDED
#define JPEG_LIB_VERSION 62
#define C_ARITH_CODING_SUPPORTED 1
#define D_ARITH_CODING_SUPPORTED 1
#define MEM_SRCDST_SUPPORTED 1
#define BITS_IN_JSAMPLE 8
#include "libjpeg/jpeglib.h"

#endif
