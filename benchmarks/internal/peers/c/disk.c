/* Cold reads or durable writes of 4 KiB at random, asked for over a connection: what the wire
 * leaves of what a disk does for so many threads.
 *
 *   disk serve PORT FILE
 *   disk cold|ahead|durable PORT FILE THREADS MS       each page of it once at most, DEPTH outstanding
 *
 * A request has 80 bytes, with its page behind it if it is a write; an answer has 64, with the page if
 * it is a read. One thread receives, THREADS make one pread or one pwritev2(RWF_DSYNC) for each, in
 * whatever order; who has ended one sends what has ended meanwhile in one call, unless somebody is
 * sending. The page cache of the file is dropped first; "ahead" is cold, and the receiver tells the kernel
 * what is going to be read (POSIX_FADV_WILLNEED) before a thread comes to it. Left out: SCSI, CRC,
 * limits, and what is to happen when a call fails. */
#include "bound.h"
#include <fcntl.h>
#include <pthread.h>

enum { REQUEST = 80, ANSWER = 64, PAGE = 4096, DEPTH = 32, THREADS = 256, SLOTS = 2 * DEPTH };

/* request is one of DEPTH; its answer begins with the same slot. */
union request {
	struct {
		uint32_t slot, page;
	};
	char bytes[REQUEST];
};

struct hello {
	uint32_t durable, ahead, threads;
};

static int file, s, durable, ahead;

static char data[DEPTH][PAGE];
static union request asked[DEPTH];

/* Rings of slots. */
static uint32_t come[SLOTS], ended[SLOTS];
static unsigned come_in, come_out, ended_in, ended_out;
static int over, sending;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

/* answer_locked sends what has ended until there is no more. mu is held, but not in the call. */
static void answer_locked(void)
{
	static char heads[DEPTH][ANSWER];
	struct iovec v[2 * DEPTH];
	for (sending = 1; ended_out != ended_in;) {
		struct msghdr h = {.msg_iov = v};
		size_t bytes = 0;
		for (int i = 0; i < DEPTH && ended_out != ended_in; i++) {
			uint32_t slot = ended[ended_out++ % SLOTS];
			memcpy(heads[i], &slot, sizeof slot);
			v[h.msg_iovlen++] = (struct iovec){heads[i], ANSWER};
			if (!durable)
				v[h.msg_iovlen++] = (struct iovec){data[slot], PAGE};
			bytes += durable ? ANSWER : ANSWER + PAGE;
		}
		pthread_mutex_unlock(&mu);
		if (sendmsg(s, &h, 0) != (ssize_t)bytes)
			shutdown(s, SHUT_RDWR); /* the receiver hears of it */
		pthread_mutex_lock(&mu);
	}
	sending = 0;
}

static void *worker(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&mu);
	for (;;) {
		while (come_out == come_in && !over)
			pthread_cond_wait(&more, &mu);
		if (come_out == come_in)
			break;
		uint32_t slot = come[come_out++ % SLOTS];
		pthread_mutex_unlock(&mu);
		struct iovec v = {data[slot], PAGE};
		off_t at = (off_t)asked[slot].page * PAGE;
		if ((durable ? pwritev2(file, &v, 1, at, RWF_DSYNC) : pread(file, data[slot], PAGE, at)) != PAGE)
			die("disk");
		pthread_mutex_lock(&mu);
		ended[ended_in++ % SLOTS] = slot;
		if (!sending)
			answer_locked();
	}
	pthread_mutex_unlock(&mu);
	return NULL;
}

/* receive takes requests until the peer has gone. */
static void receive(void)
{
	static char buf[DEPTH * (REQUEST + PAGE)];
	size_t size = durable ? REQUEST + PAGE : REQUEST, in = 0;
	for (ssize_t n; (n = recv(s, buf + in, sizeof buf - in, 0)) > 0;) {
		size_t whole = (in += n) / size;
		for (size_t i = 0; i < whole; i++) {
			union request *r = (void *)(buf + i * size);
			if (r->slot >= DEPTH)
				return;
			asked[r->slot] = *r;
			if (ahead)
				posix_fadvise(file, (off_t)r->page * PAGE, PAGE, POSIX_FADV_WILLNEED);
			if (durable)
				memcpy(data[r->slot], (char *)r + REQUEST, PAGE);
			pthread_mutex_lock(&mu);
			come[come_in++ % SLOTS] = r->slot;
			pthread_cond_signal(&more);
			pthread_mutex_unlock(&mu);
		}
		memmove(buf, buf + whole * size, in -= whole * size);
	}
}

static void serve_one(const char *path)
{
	struct hello h;
	pthread_t t[THREADS];
	if (read_all(s, &h, sizeof h) || h.threads < 1 || h.threads > THREADS)
		return;
	if ((file = open(path, O_RDWR)) < 0)
		die(path);
	durable = h.durable;
	ahead = h.ahead;
	fdatasync(file);
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	over = 0;
	for (uint32_t i = 0; i < h.threads; i++)
		if (pthread_create(&t[i], NULL, worker, NULL))
			die("pthread_create");
	if (write_all(s, &h, sizeof h) == 0)
		receive();
	pthread_mutex_lock(&mu);
	over = 1;
	pthread_cond_broadcast(&more);
	pthread_mutex_unlock(&mu);
	for (uint32_t i = 0; i < h.threads; i++)
		pthread_join(t[i], NULL);
	close(file);
}

static _Noreturn void serve(const char *port, const char *path)
{
	for (int l = listen_at(port);; close(s)) {
		s = accept_on(l);
		serve_one(path);
	}
}

int main(int argc, char **argv)
{
	static char out[DEPTH * (REQUEST + PAGE)], in[DEPTH * (ANSWER + PAGE)];
	if (argc >= 4 && strcmp(argv[1], "serve") == 0)
		serve(argv[2], argv[3]);
	if (argc < 6)
		return usage("disk serve PORT FILE | cold|ahead|durable PORT FILE THREADS MS");
	struct hello h = {argv[1][0] == 'd', argv[1][0] == 'a', atoi(argv[4])};
	size_t ask = h.durable ? REQUEST + PAGE : REQUEST, size = h.durable ? ANSWER : ANSWER + PAGE;
	if ((file = open(argv[3], O_RDONLY)) < 0)
		die(argv[3]);
	uint64_t pages = lseek(file, 0, SEEK_END) / PAGE, next = 0, done = 0;
	uint32_t *order = malloc((pages + 1) * sizeof *order);
	if (order == NULL)
		die("malloc");
	for (uint64_t i = 0; i < pages; i++) {
		uint64_t j = at_random(i + 1);
		order[i] = order[j];
		order[j] = i;
	}
	uint32_t free_slots[DEPTH], idle = DEPTH; /* slots of requests that may be sent */
	for (uint32_t i = 0; i < DEPTH; i++)
		free_slots[i] = i;
	keep_trips();
	s = connect_to(argv[2]);
	if (write_all(s, &h, sizeof h) || read_all(s, &h, sizeof h))
		die("disk");
	int64_t sent_at[DEPTH], used = cpu(), began = now(), t = began, stop = began + atoi(argv[5]) * 1000000LL;
	for (size_t got = 0;;) {
		size_t n = 0;
		for (; t < stop && next < pages && idle > 0; n++) {
			union request *r = (void *)(out + n * ask);
			r->slot = free_slots[--idle];
			r->page = order[next++];
			sent_at[r->slot] = t;
		}
		if (idle == DEPTH)
			break;
		ssize_t k;
		if (write_all(s, out, n * ask) || (k = read(s, in + got, sizeof in - got)) <= 0)
			die("disk");
		t = now();
		size_t whole = (got += k) / size;
		for (size_t i = 0; i < whole; i++, done++) {
			uint32_t slot;
			memcpy(&slot, in + i * size, sizeof slot);
			trip(t - sent_at[slot]);
			free_slots[idle++] = slot;
		}
		memmove(in, in + whole * size, got -= whole * size);
	}
	report(done, (double)done * PAGE, t - began, cpu() - used);
	return 0;
}
