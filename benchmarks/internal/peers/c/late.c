/* How late the kernel wakes a process up that shares its processor.
 *
 *   late alone|beside MS             "beside": another process of it is always busy
 *
 * It works for 200 us, sleeps for 100, and asks how late it woke up: 50th and 99th percentile.
 * No storage, no socket: what two clients on one processor do to each other at the least. */
#include "bound.h"
#include <sys/prctl.h>
#include <sys/wait.h>

enum { WORK = 200000, SLEEP = 100000 };

int main(int argc, char **argv)
{
	if (argc < 3)
		return usage("late alone|beside MS");
	keep_trips();
	int64_t began = now(), stop = began + atoi(argv[2]) * 1000000LL, n = 0, t;
	pid_t busy = argv[1][0] == 'b' ? fork() : -1;
	if (busy == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (now() < stop)
			;
		_exit(0);
	}
	for (; (t = now()) < stop; n++) {
		while (now() < t + WORK)
			;
		struct timespec d = {0, SLEEP};
		t = now();
		nanosleep(&d, NULL);
		trip(now() - t - SLEEP);
	}
	if (busy > 0) {
		kill(busy, SIGKILL);
		waitpid(busy, NULL, 0);
	}
	report(n, 0, now() - began, 0);
	return 0;
}
