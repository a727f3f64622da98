package usage

import (
	"context"
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
