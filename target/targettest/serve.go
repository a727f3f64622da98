// Package targettest serves targets for the time of a test.
package targettest

import (
	"context"
	"testing"
	"time"

	"softiser/target"
)

// Serve makes srv listen and serve until the test ends. Volumes are the caller's to close: what
// it has given to t.Cleanup before is done after the server has stopped.
func Serve(t testing.TB, srv *target.Server) {
	t.Helper()
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		// Sessions that nobody has ended are not waited for.
		done, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer stop()
		srv.Shutdown(done)
		<-served
	})
}
