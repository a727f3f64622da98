/* Threads that make one system call after another on a file: how many cold reads or durable
 * writes of 4 KiB at random there can be. Each page has its turn once, in any order, as with fio;
 * then it is over.
 *
 *   calls cold|durable FILE THREADS MS
 *
 * "cold" drops the page cache of the file and reads by pread; "durable" writes by
 * pwritev2(RWF_DSYNC). Left out: the wire. */
#include "bound.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { PAGE = 4096, THREADS = 256, KEPT = 1 << 16 };

static int file, durable;
static uint32_t *order; /* of the pages */
static uint64_t pages;
static atomic_ullong next; /* of order */
static int64_t stop;

struct thread {
	pthread_t id;
	long done;
	int64_t took[KEPT];
};

static void *run(void *p)
{
	struct thread *t = p;
	char *page = memory(PAGE);
	for (int64_t began = now(), end; began < stop; began = end) {
		uint64_t i = atomic_fetch_add(&next, 1);
		if (i >= pages)
			break;
		off_t at = (off_t)order[i] * PAGE;
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
	if (!(order = malloc((pages + 1) * sizeof *order)))
		die("malloc");
	uint64_t x = 88172645463325252ull;
	for (uint64_t i = 0, j; i < pages; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		j = x % (i + 1);
		order[i] = order[j];
		order[j] = i;
	}
	fdatasync(file);
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	struct thread *all = calloc(n, sizeof *all);
	int64_t used = cpu(), began = now();
	stop = began + atoi(argv[4]) * 1000000LL;
	for (int i = 0; i < n; i++)
		if (pthread_create(&all[i].id, NULL, run, &all[i]))
			die("pthread_create");
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
