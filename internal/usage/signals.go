package usage

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// twin is how long after a signal others are taken for the same one: who passes a Ctrl-C on that went to the
// whole group (timeout, sudo, make) sends a second one a moment later.
const twin = time.Second

// Insist has a signal that comes a second or more after the one that ended ctx end the process. stop is that of
// signal.NotifyContext. Until then what ctx ends may end in good order: a report is written, a device is given back.
func Insist(ctx context.Context, stop context.CancelFunc) {
	context.AfterFunc(ctx, func() { time.AfterFunc(twin, stop) })
}

// OutliveReaders keeps the process alive when nobody reads its standard output or error any more: Go lets SIGPIPE
// end a program that writes there, and one that serves has others to serve whatever becomes of its log.
func OutliveReaders() (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGPIPE)
	return func() { signal.Stop(c) }
}
