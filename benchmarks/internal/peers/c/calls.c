/* Threads that make one system call after another on a file: how many cold reads or durable
 * writes of 4 KiB at random there can be.
 *
 *   calls cold|durable FILE THREADS MS
 *
 * "cold" drops the page cache of the file and reads by pread; "durable" writes by
 * pwritev2(RWF_DSYNC). Left out: the wire. */
#include "bound.h"
#include <fcntl.h>
#include <pthread.h>

enum { PAGE = 4096, THREADS = 256, KEPT = 1 << 16 };

static int file, durable;
static uint64_t pages;
static int64_t stop;

struct thread {
	pthread_t id;
	uint64_t x;
	long done;
	int64_t took[KEPT];
};

static void *run(void *p)
{
	struct thread *t = p;
	char *page = memory(PAGE);
	for (int64_t began = now(), end; began < stop; began = end) {
		t->x ^= t->x << 13;
		t->x ^= t->x >> 7;
		t->x ^= t->x << 17;
		off_t at = t->x % pages * PAGE;
		struct iovec v = {page, PAGE};
		if ((durable ? pwritev2(file, &v, 1, at, RWF_DSYNC) : pread(file, page, PAGE, at)) != PAGE)
			die("calls");
		end = now();
		t->took[t->done++ % KEPT] = end - began;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int n = argc >= 5 ? atoi(argv[3]) : 0;
	if (n < 1 || n > THREADS)
		return usage("calls cold|durable FILE THREADS MS");
	durable = argv[1][0] == 'd';
	if ((file = open(argv[2], O_RDWR)) < 0)
		die(argv[2]);
	pages = lseek(file, 0, SEEK_END) / PAGE;
	fdatasync(file);
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	struct thread *all = calloc(n, sizeof *all);
	int64_t used = cpu(), began = now();
	stop = began + atoi(argv[4]) * 1000000LL;
	for (int i = 0; i < n; i++) {
		all[i].x = 88172645463325252ull * (i + 1);
		if (pthread_create(&all[i].id, NULL, run, &all[i]))
			die("pthread_create");
	}
	double sum = 0;
	for (int i = 0; i < n; i++) {
		pthread_join(all[i].id, NULL);
		sum += all[i].done;
		for (long k = 0; k < all[i].done && k < KEPT; k++)
			trip(all[i].took[k]);
	}
	report(sum, sum * PAGE, now() - began, cpu() - used);
	return 0;
}
