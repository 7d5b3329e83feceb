// Preloaded into a server by StartWithLocale: a locale in which all texts sort the other way round. Real ones differ
// from the order of bytes in a few pairs of letters only, and are seldom installed.
#include <string.h>

int strcoll(const char *a, const char *b) { return strcmp(b, a); }
