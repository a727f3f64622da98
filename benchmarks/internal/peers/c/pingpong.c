/* A TCP ping-pong, as plain as C allows: the reference below ours and Go's.
 *
 *   pingpong serve PORT                    answers one connection after another
 *   pingpong wait|spin PORT SIZE MS        prints messages, seconds, p50, p99 (ns) as JSON
 *
 * "wait" blocks in recv(2), "spin" asks a non-blocking socket again and again;
 * the server does what the first byte asks for. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int recv_all(int fd, char *p, size_t n, int flags)
{
	while (n > 0) {
		ssize_t k = recv(fd, p, n, flags);
		if (k == 0)
			return -1;
		if (k < 0) {
			if (errno == EAGAIN || errno == EINTR)
				continue;
			return -1;
		}
		p += k;
		n -= k;
	}
	return 0;
}

static int send_all(int fd, const char *p, size_t n, int flags)
{
	while (n > 0) {
		ssize_t k = send(fd, p, n, flags | MSG_NOSIGNAL);
		if (k < 0) {
			if (errno == EAGAIN || errno == EINTR)
				continue;
			return -1;
		}
		p += k;
		n -= k;
	}
	return 0;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void nodelay(int fd)
{
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int serve(struct sockaddr_in *at)
{
	int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(l, (struct sockaddr *)at, sizeof *at) || listen(l, 8)) {
		perror("pingpong");
		return 1;
	}
	for (;;) {
		uint32_t h[2]; /* spin, size */
		int fd = accept(l, NULL, NULL);
		if (fd < 0)
			return 1;
		nodelay(fd);
		if (recv_all(fd, (char *)h, sizeof h, 0) == 0 && h[1] > 0 && h[1] <= 1 << 20) {
			int flags = h[0] ? MSG_DONTWAIT : 0;
			char *buf = malloc(h[1]);
			while (recv_all(fd, buf, h[1], flags) == 0 && send_all(fd, buf, h[1], flags) == 0)
				;
			free(buf);
		}
		close(fd);
	}
}

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (argc < 3)
		return 2;
	at.sin_port = htons(atoi(argv[2]));
	if (strcmp(argv[1], "serve") == 0)
		return serve(&at);
	if (argc < 5)
		return 2;
	uint32_t h[2] = {strcmp(argv[1], "spin") == 0, atoi(argv[3])};
	int flags = h[0] ? MSG_DONTWAIT : 0;
	int64_t stop, began, t, max = 4 << 20, n = 0, *trips = malloc(max * sizeof *trips);
	char *buf = calloc(1, h[1]);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	nodelay(fd);
	if (connect(fd, (struct sockaddr *)&at, sizeof at) || send_all(fd, (char *)h, sizeof h, 0)) {
		perror("pingpong");
		return 1;
	}
	began = t = now();
	stop = began + atoi(argv[4]) * 1000000LL;
	while (t < stop && n < max) {
		int64_t end;
		if (send_all(fd, buf, h[1], flags) || recv_all(fd, buf, h[1], flags)) {
			perror("pingpong");
			return 1;
		}
		end = now();
		trips[n++] = end - t;
		t = end;
	}
	qsort(trips, n, sizeof *trips, by_value);
	printf("{\"messages\":%lld,\"bytes\":%lld,\"seconds\":%f,\"p50_ns\":%lld,\"p99_ns\":%lld}\n", (long long)n,
	       (long long)n * h[1], (t - began) / 1e9, (long long)trips[n / 2], (long long)trips[n * 99 / 100]);
	return 0;
}
