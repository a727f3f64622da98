/* Writes of 4 KiB to a file, sent over a connection: what a target adds to fio's psync at the
 * least.
 *
 *   first serve PORT FILE
 *   first worker|inline PORT FILE BYTES          BYTES of it, each page once, in random order, 32 outstanding
 *
 * A command has 64 bytes and its page; the server makes one pwrite of it, by the thread that
 * receives ("inline") or by another one, and answers all that it has written since in one send.
 * Left out: SCSI, CRC, more than one worker, and what is to happen when a write fails. */
#include "bound.h"
#include <fcntl.h>
#include <pthread.h>

enum { HEADER = 64, PAGE = 4096, COMMAND = HEADER + PAGE, DEPTH = 32, SLOTS = 64, BATCH = 16 };

static char slots[SLOTS][COMMAND]; /* a ring of commands as they come; DEPTH keeps it from running over */
static int file, s;

/* What the receiver tells the worker. */
static unsigned come; /* commands so far */
static int over;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

/* put writes commands to the file and answers them. */
static void put(unsigned first, unsigned n)
{
	static char answers[SLOTS * HEADER];
	for (unsigned i = first; i < first + n; i++) {
		char *c = slots[i % SLOTS];
		uint64_t page;
		memcpy(&page, c, sizeof page);
		if (pwrite(file, c + HEADER, PAGE, page * PAGE) != PAGE)
			die("pwrite");
	}
	write_all(s, answers, n * HEADER);
}

static void *worker(void *unused)
{
	(void)unused;
	for (unsigned done = 0, n;; done += n) {
		pthread_mutex_lock(&mu);
		while (come == done && !over)
			pthread_cond_wait(&more, &mu);
		n = come - done;
		pthread_mutex_unlock(&mu);
		if (n == 0)
			return NULL;
		n = n < BATCH ? n : BATCH;
		put(done, n);
	}
}

static void tell(unsigned commands, int end)
{
	pthread_mutex_lock(&mu);
	come = commands;
	over = end;
	pthread_cond_signal(&more);
	pthread_mutex_unlock(&mu);
}

/* receive takes commands until the peer has gone. */
static void receive(int thread)
{
	pthread_t t;
	come = over = 0;
	if (thread && pthread_create(&t, NULL, worker, NULL))
		die("pthread_create");
	size_t got = 0;
	unsigned all = 0;
	for (ssize_t n;; got += n) {
		size_t at = got % sizeof slots;
		n = recv(s, (char *)slots + at, sizeof slots - at, 0);
		if (n <= 0)
			break;
		unsigned before = all;
		all = (got + n) / COMMAND;
		if (thread)
			tell(all, 0);
		else if (all > before)
			put(before, all - before);
	}
	if (thread) {
		tell(all, 1);
		pthread_join(t, NULL);
	}
}

static _Noreturn void serve(const char *port, const char *path)
{
	for (int l = listen_at(port);;) {
		uint32_t thread;
		s = accept_on(l);
		if (read_all(s, &thread, sizeof thread) == 0) {
			if ((file = open(path, O_RDWR)) < 0) /* the harness makes it anew each time */
				die(path);
			receive(thread);
			close(file);
		}
		close(s);
	}
}

int main(int argc, char **argv)
{
	static char out[DEPTH][COMMAND], answers[DEPTH * HEADER];
	if (argc >= 4 && strcmp(argv[1], "serve") == 0)
		serve(argv[2], argv[3]);
	if (argc < 5)
		return usage("first serve PORT FILE | worker|inline PORT FILE BYTES");
	uint32_t thread = argv[1][0] == 'w', total = atoll(argv[4]) / PAGE;
	file = open(argv[3], O_RDONLY);
	uint64_t pages = lseek(file, 0, SEEK_END) / PAGE, *order = malloc(pages * sizeof *order);
	if (file < 0 || order == NULL || total > pages)
		die(argv[3]);
	for (uint64_t i = 0; i < pages; i++) {
		uint64_t j = at_random(i + 1);
		order[i] = order[j];
		order[j] = i;
	}
	keep_trips();
	s = connect_to(argv[2]);
	if (write_all(s, &thread, sizeof thread))
		die("first");
	int64_t sent_at[DEPTH], used = cpu(), began = now();
	uint32_t sent = 0, done = 0;
	for (size_t got = 0; done < total;) {
		uint32_t n = 0;
		for (int64_t t = now(); sent < total && sent < done + DEPTH; sent++) {
			memcpy(out[n++], &order[sent], sizeof order[sent]);
			sent_at[sent % DEPTH] = t;
		}
		ssize_t k;
		if (write_all(s, out, n * COMMAND) || (k = read(s, answers, sizeof answers)) <= 0)
			die("first");
		got += k;
		for (int64_t t = now(); done < got / HEADER; done++)
			trip(t - sent_at[done % DEPTH]);
	}
	report(total, (double)total * PAGE, now() - began, cpu() - used);
	return 0;
}
