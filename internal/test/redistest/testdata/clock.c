// Preloaded into a server by StartWithClock: shifts its wall clock by the
// number of nanoseconds in a shared file, which the test may change at any
// time. libfaketime cannot serve here: it hangs with jemalloc, which it calls
// before it is ready and which asks it for the time.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void map_shift(void) {
	int fd = open(getenv("REDISTEST_CLOCK"), O_RDONLY);
	void *page = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) abort();
	close(fd);
	shift = page;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	int failed = (int)syscall(SYS_clock_gettime, id, ts);
	if (!failed && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
		int64_t now = ts->tv_sec * INT64_C(1000000000) + ts->tv_nsec + *shift;
		ts->tv_sec = now / 1000000000;
		ts->tv_nsec = now % 1000000000;
	}
	return failed;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
	struct timespec ts;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out) {
	struct timespec ts;
	if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
	if (out) *out = ts.tv_sec;
	return ts.tv_sec;
}
