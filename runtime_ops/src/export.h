#ifndef RNNQC_EXPORT_H_
#define RNNQC_EXPORT_H_

#if defined(_WIN32)
#define RNNQC_EXPORT __declspec(dllexport)
#else
#define RNNQC_EXPORT __attribute__((visibility("default")))
#endif

#endif  // RNNQC_EXPORT_H_
