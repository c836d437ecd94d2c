/* libjpeg-turbo's own header, for the ABI of libjpeg 6b: the one that Pillow's wheels hold (native/__init__.py). */
#ifndef PREP_TURBO_H
#define PREP_TURBO_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Ubuntu's headers are for ABI 80; wheels of Pillow hold ABI 62. libjpeg-turbo's one jpeglib.h serves all. */
#include <jconfig.h>
#define JCONFIG_INCLUDED
#undef JPEG_LIB_VERSION
#define JPEG_LIB_VERSION 62
#include <jpeglib.h>
#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "jpeglib.h is not libjpeg-turbo's"
#endif

#endif
