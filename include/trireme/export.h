/**
 * @file export.h
 * @brief Linkage and calling convention of public functions and callbacks, and helpers of _INIT
 * macros.
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

/**
 * Exports a public function. TRIREME_FALLIBLE also makes the compiler warn of a caller that ignores
 * the status.
 */
#if defined(__GNUC__)
#define TRIREME_API __attribute__((visibility("default")))
#define TRIREME_FALLIBLE __attribute__((visibility("default"), warn_unused_result))
#else
#define TRIREME_API
#define TRIREME_FALLIBLE
#endif

/**
 * Makes a struct with struct_size set and all other fields 0. The _INIT macros use it. In C++ it
 * calls a function, because C++ compilers warn of fields that an initialiser leaves out.
 */
#ifdef __cplusplus
#define TRIREME_INIT(type) (trireme_init<type>())
extern "C++" {
template <class Struct>
inline Struct trireme_init() {
    Struct value = Struct();
    value.struct_size = sizeof(Struct);
    return value;
}
}
#else
#define TRIREME_INIT(type) \
    { .struct_size = sizeof(type) }
#endif

/** As TRIREME_INIT(), for the options of a rule or a schedule: it also sets base.kind. */
#ifdef __cplusplus
#define TRIREME_INIT_KIND(type, number) (trireme_init_kind<type>(number))
extern "C++" {
template <class Struct>
inline Struct trireme_init_kind(int number) {
    Struct value = Struct();
    value.base.struct_size = sizeof(Struct);
    value.base.kind = number;
    return value;
}
}
#else
#define TRIREME_INIT_KIND(type, number)  \
    {                                    \
        .base = { sizeof(type), number } \
    }
#endif

/** The calling convention of functions and callbacks. Empty: the platform's default for C. */
#define TRIREME_CALLCONV

#endif
