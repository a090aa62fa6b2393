/**
 * @file export.h
 * @brief Linkage and calling convention of every public function.
 *
 * Ownership: none. Thread safety: none needed.
 */
#ifndef TRIREME_EXPORT_H
#define TRIREME_EXPORT_H

#ifdef __cplusplus
#define TRIREME_BEGIN_C extern "C" {
#define TRIREME_END_C }
#else
#define TRIREME_BEGIN_C
#define TRIREME_END_C
#endif

/** Set while the library itself is compiled; users leave it alone. */
#if defined(__GNUC__)
#define TRIREME_API __attribute__((visibility("default")))
#define TRIREME_FALLIBLE __attribute__((visibility("default"), warn_unused_result))
#else
#define TRIREME_API
#define TRIREME_FALLIBLE
#endif

/** The calling convention. Empty: the platform's default for C. */
#define TRIREME_CALL

#endif
