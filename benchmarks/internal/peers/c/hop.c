/* One process more between a client and a server: whatever comes on one unix socket is written
 * to the other.
 *
 *   hop LISTEN SERVER                one connection after another
 *   hop LISTEN PORT                  the server is reached over TCP on the loopback instead
 *
 * Left out: everything that a block device and a second protocol need. */
#include "bound.h"
#include <poll.h>
#include <sys/un.h>

static struct sockaddr_un at(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	return a;
}

static int reach(const char *server)
{
	if (!strchr(server, '/'))
		return connect_to(server);
	struct sockaddr_un a = at(server);
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	if (connect(s, (void *)&a, sizeof a))
		die("connect");
	return s;
}

/* carry moves what is there; -1: one of the two has gone. */
static int carry(int from, int to)
{
	static char b[256 << 10];
	ssize_t n = read(from, b, sizeof b);
	return n > 0 ? write_all(to, b, n) : -1;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return usage("hop LISTEN SERVER|PORT");
	struct sockaddr_un here = at(argv[1]);
	int l = socket(AF_UNIX, SOCK_STREAM, 0);
	signal(SIGPIPE, SIG_IGN);
	if (bind(l, (void *)&here, sizeof here) || listen(l, 8))
		die("listen");
	for (;;) {
		struct pollfd p[2] = {{accept_on(l), POLLIN, 0}, {reach(argv[2]), POLLIN, 0}};
		for (int over = 0; !over && poll(p, 2, -1) > 0;)
			for (int i = 0; i < 2 && !over; i++)
				if (p[i].revents)
					over = carry(p[i].fd, p[!i].fd);
		close(p[0].fd);
		close(p[1].fd);
	}
}
